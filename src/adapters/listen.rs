//! Listeners and connections of an adapter: its own limits and timeouts.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::exchange::HttpSessions;
use super::handler::{AdapterPeer, BODY_BYTES_MAX, BadRequest, HttpHandler, Token};
use super::{AdapterProtocol, AdapterState, AnswerKind, envoy, resp};
use crate::server::{AdapterMemory, BACKLOG, Listener, QueueMembership, retry_until_open};

/// Serves all listeners of the settings until `stop`.
pub(super) async fn serve(state: &Arc<AdapterState>, stop: &CancellationToken) {
    let permits = Arc::<AdapterPermits>::default();
    let served = async {
        tokio::join!(
            serve_socket(state, &permits, stop),
            serve_port(state, &permits, stop),
            HttpSessions::expire(state)
        )
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = served => {}
    }
    // The requests in flight are answered.
    permits.tasks.close();
    let _ = tokio::time::timeout(LAST_ANSWER_MAX, permits.tasks.wait()).await;
}

async fn serve_socket(state: &Arc<AdapterState>, permits: &Arc<AdapterPermits>, stop: &CancellationToken) {
    let Some(path) = &state.endpoint.socket else { return };
    let bind = async || {
        let bound = Listener::bind(path, state.endpoint.mode, state.endpoint.group);
        let listener = bound.map_err(|error| error.to_string())?;
        let watched = listener.watch().map_err(|error| error.to_string())?;
        Ok((watched, listener))
    };
    loop {
        let (listener, bound) = open(state, bind).await;
        info!(socket = %path.display(), "{} is served", state.protocol.names().0);
        let accept = async || {
            let (socket, _) = listener.accept().await?;
            let user = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
            Ok((socket, AdapterPeer { user, token: None, is_known: Arc::default() }))
        };
        tokio::select! {
            () = accept_each(state, permits, stop, accept) => {}
            () = bound.await_removal() => {}
        }
        let path = path.display();
        warn!(%path, "the socket of {} was removed or replaced: it is made again", state.protocol.names().0);
    }
}

async fn serve_port(state: &Arc<AdapterState>, permits: &Arc<AdapterPermits>, stop: &CancellationToken) {
    let Some(address) = state.endpoint.listen else { return };
    let bind = async || {
        let file = &state.endpoint.token_file;
        let token = Token::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let listener = listen_at(address);
        Ok((listener.map_err(|error| format!("{address}: {error}"))?, Arc::new(token)))
    };
    let (listener, token) = open(state, bind).await;
    // Port 0 has become one that was free.
    let address = listener.local_addr().unwrap_or(address);
    info!(%address, "{} is served", state.protocol.names().0);
    let user = rustix::process::geteuid().as_raw();
    let accept = async || {
        let (socket, _) = listener.accept().await?;
        let _ = socket.set_nodelay(true);
        Ok((socket, AdapterPeer { user, token: Some(Arc::clone(&token)), is_known: Arc::default() }))
    };
    accept_each(state, permits, stop, accept).await;
}

/// Opens a listener, again and again until it succeeds. Meanwhile the status warns.
async fn open<T>(state: &AdapterState, mut bind: impl AsyncFnMut() -> Result<T, String>) -> T {
    let first = bind().await;
    let unserved = u64::from(first.is_err());
    state.counters.unserved.fetch_add(unserved, Ordering::Relaxed);
    let (name, field) = state.protocol.names();
    let meanwhile =
        format!("{name} is not served: it is tried again every second; help: correct `adapters.{field}`");
    let opened = retry_until_open(first, bind, &meanwhile).await;
    state.counters.unserved.fetch_sub(unserved, Ordering::Relaxed);
    opened
}

/// Listens with the backlog of the socket: one that is full delays a connect by a second.
fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG.into())
}

async fn accept_each<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    state: &Arc<AdapterState>,
    permits: &Arc<AdapterPermits>,
    stop: &CancellationToken,
    mut accept: impl AsyncFnMut() -> io::Result<(S, AdapterPeer)>,
) {
    for number in 1_usize.. {
        match accept().await {
            Ok((socket, peer)) => match AdapterPermits::take_or_free(permits, state, peer.user).await {
                Ok(permit) => {
                    let (state, stop) = (Arc::clone(state), stop.clone());
                    let member = (state.fair_queue.join(peer.user), peer.clone());
                    match &state.protocol {
                        AdapterProtocol::Http(_) => {
                            let handler = HttpHandler::new(state, peer);
                            permits.spawn(member, serve_connection(socket, handler, permit, stop));
                        }
                        AdapterProtocol::Resp => {
                            let handler = HttpHandler::new(state, peer);
                            permits.spawn(member, resp::serve_connection(socket, handler, permit, stop));
                        }
                        AdapterProtocol::Envoy => {
                            permits.spawn(member, envoy::serve_connection(socket, state, peer, permit, stop));
                        }
                    }
                }
                // A closed connection is the answer.
                Err(limit) => {
                    let name = state.protocol.names().0;
                    warn!(
                        user = peer.user,
                        "{name} has as many connections as its part of `{limit}` allows: more are closed"
                    );
                    state.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                }
            },
            Err(error) => {
                debug!(%error, "a connection was not accepted");
                // For want of descriptors it would fail again at once.
                tokio::time::sleep(PAUSE).await;
            }
        }
        // A user's backlog of connections must not wait for as many rounds of its requests, with another user behind it.
        if number.is_multiple_of(ACCEPTED_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
}

/// Serves one connection to its end: one request after the other.
async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut socket: S,
    handler: HttpHandler,
    permit: AdapterPermit,
    stop: CancellationToken,
) {
    let service = service_fn(async |request: Request<Incoming>| {
        let mut held = permit.hold();
        let expected = request.body().size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
        let expected = expected.map_or(BODY_BYTES_MAX, |bytes| bytes.min(BODY_BYTES_MAX));
        let has_room = expected <= BODY_BYTES_FREE || held.add(expected);
        if has_room {
            return Ok::<_, Infallible>(handler.answer(request).await);
        }
        let message = "too many bytes of requests are not answered".to_owned();
        Ok(handler.reject(BadRequest(StatusCode::SERVICE_UNAVAILABLE, message)))
    });
    let ended = {
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            // A client that writes no more still reads its answer.
            .half_close(true)
            .serve_connection(TokioIo::new(&mut socket), service);
        let mut served = pin!(served);
        tokio::select! {
            ended = served.as_mut() => ended,
            // The stop, or the end of the time.
            _ = tokio::time::timeout(CONNECTION_MAX, stop.cancelled()) => {
                served.as_mut().graceful_shutdown();
                tokio::time::timeout(LAST_ANSWER_MAX, served).await.unwrap_or(Ok(()))
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "an HTTP connection failed");
        let fault =
            if error.is_parse_too_large() { "its head is above 64 KiB" } else { "its head is malformed" };
        if error.is_parse() {
            permit.state.counters.count(AnswerKind::Rejected);
            permit.state.report_unjudged(fault);
        }
    }
    discard_rest(&mut socket).await;
}

/// Reads what the peer still writes, so that it receives the answer and no error: to a proxy an error may mean that
/// requests pass.
async fn discard_rest(socket: &mut (impl AsyncRead + Unpin)) {
    let discarded = async {
        let (mut left, mut part) = (DISCARDED_BYTES_MAX, vec![0; DISCARDED_AT_ONCE]);
        while left > 0 {
            match socket.read(&mut part).await {
                Ok(read @ 1..) => left = left.saturating_sub(read),
                Ok(0) | Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIME_MAX, discarded).await;
}

/// The connections: their tasks, and the use of each user.
#[derive(Debug, Default)]
struct AdapterPermits {
    by_user: Mutex<HashMap<u32, UserConnections>>,
    tasks: TaskTracker,
    /// The tasks of connections over TCP that have not sent the token, the oldest first.
    strangers: Mutex<VecDeque<(AdapterPeer, AbortHandle)>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct UserConnections {
    open: usize,
    /// The bytes of requests that are not answered.
    bytes: usize,
}

/// Bytes of a request, until this is dropped.
#[derive(Debug)]
pub(super) struct RequestBytes<'p> {
    permit: &'p AdapterPermit,
    bytes: usize,
}

/// One connection. Its permit is free once this drops.
#[derive(Debug)]
pub(super) struct AdapterPermit {
    permits: Arc<AdapterPermits>,
    state: Arc<AdapterState>,
    user: u32,
    memory: AdapterMemory,
}

impl AdapterPermits {
    /// Takes a permit: of HTTP a quarter of all connections and half of those of a user, of RESP and Envoy half as many. Each has a
    /// connection to a decision thread, and so has each session; some remain for the socket. An error names the setting.
    fn take(
        permits: &Arc<AdapterPermits>,
        state: &Arc<AdapterState>,
        user: u32,
    ) -> Result<AdapterPermit, &'static str> {
        let mut by_user = permits.by_user.lock();
        let open: usize = by_user.values().map(|of_user| of_user.open).sum();
        let of_user = by_user.entry(user).or_default();
        let parts = if matches!(state.protocol, AdapterProtocol::Http(_)) { 1 } else { 2 };
        let (max, per_user) = (state.limits.max / 4 / parts, state.limits.per_user / 2 / parts);
        if open >= max.max(1) as usize {
            return Err("connections.max");
        }
        if of_user.open >= per_user.max(1) as usize {
            return Err("connections.per_user");
        }
        of_user.open += 1;
        state.counters.connections.store(open as u64 + 1, Ordering::Relaxed);
        let memory = state.connector.count_memory(user);
        Ok(AdapterPermit { permits: Arc::clone(permits), state: Arc::clone(state), user, memory })
    }

    /// Takes a permit. If there is none, the oldest connection without the token ends for it: any user of the host can open such.
    async fn take_or_free(
        permits: &Arc<AdapterPermits>,
        state: &Arc<AdapterState>,
        user: u32,
    ) -> Result<AdapterPermit, &'static str> {
        let taken = AdapterPermits::take(permits, state, user);
        let Some((_, stranger)) = taken.is_err().then(|| permits.strangers().pop_front()).flatten() else {
            return taken;
        };
        stranger.abort();
        // Its task drops its permit once it is its turn.
        while !stranger.is_finished() {
            tokio::task::yield_now().await;
        }
        AdapterPermits::take(permits, state, user)
    }

    fn strangers(&self) -> MutexGuard<'_, VecDeque<(AdapterPeer, AbortHandle)>> {
        let mut strangers = self.strangers.lock();
        strangers.retain(|(peer, task)| !peer.is_known.load(Ordering::Relaxed) && !task.is_finished());
        strangers
    }

    /// Serves a connection in the time of its user.
    fn spawn(
        &self,
        (member, peer): (QueueMembership, AdapterPeer),
        served: impl Future<Output = ()> + Send + 'static,
    ) {
        // A future that is passed on would be kept more than once.
        let served = Box::pin(served);
        let task = self.tasks.spawn(async move { member.run_in_turn(served).await });
        if peer.token.is_some() {
            self.strangers().push_back((peer, task.abort_handle()));
        }
    }
}

impl AdapterPermit {
    /// Starts to count the bytes of a request.
    pub(super) fn hold(&self) -> RequestBytes<'_> {
        RequestBytes { permit: self, bytes: 0 }
    }
}

impl RequestBytes<'_> {
    /// Adds bytes; `false`: the user, or all together, would have too many.
    #[must_use]
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        let mut by_user = self.permit.permits.by_user.lock();
        let all: usize = by_user.values().map(|of_user| of_user.bytes).sum();
        let Some(of_user) = by_user.get_mut(&self.permit.user) else { return false };
        let has_room = of_user.bytes + bytes <= BYTES_OF_USER_MAX && all + bytes <= BYTES_MAX;
        if has_room {
            of_user.bytes += bytes;
            self.bytes += bytes;
            self.permit.memory.add(bytes);
        }
        has_room
    }
}

impl Drop for RequestBytes<'_> {
    fn drop(&mut self) {
        if let Some(of_user) = self.permit.permits.by_user.lock().get_mut(&self.permit.user) {
            of_user.bytes -= self.bytes;
        }
        self.permit.memory.remove(self.bytes);
    }
}

impl Drop for AdapterPermit {
    fn drop(&mut self) {
        let mut by_user = self.permits.by_user.lock();
        if let Some(of_user) = by_user.get_mut(&self.user) {
            of_user.open -= 1;
        }
        by_user.retain(|_, of_user| of_user.open > 0);
        let open: usize = by_user.values().map(|of_user| of_user.open).sum();
        self.state.counters.connections.store(open as u64, Ordering::Relaxed);
    }
}

/// Between two requests, and for the head of one.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The cookies that a proxy passes on are long.
const HEAD_BYTES_MAX: usize = 64 * 1_024;

/// As many as fit in a head are read by most servers; hyper's own default is 100.
const HEADERS_MAX: usize = 2_000;

/// Servers in Go take heads of 1 MiB.
const DISCARDED_BYTES_MAX: usize = 4 << 20;

const DISCARDED_AT_ONCE: usize = 16 * 1_024;

const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

/// Most bodies are smaller, and every connection may have one.
const BODY_BYTES_FREE: usize = 16 * 1_024;

/// A client that does not read keeps its permit no longer.
pub(super) const CONNECTION_MAX: Duration = Duration::from_secs(600);

/// Longer than the deadline of a request.
pub(super) const LAST_ANSWER_MAX: Duration = Duration::from_millis(200);

/// The largest request of an adapter, some times.
const BYTES_OF_USER_MAX: usize = 8 * 1_024 * 1_024;

/// Some users, each with all of its own.
const BYTES_MAX: usize = 4 * BYTES_OF_USER_MAX;

/// Together they take as long as a user's slice.
const ACCEPTED_AT_ONCE: usize = 16;

const PAUSE: Duration = Duration::from_millis(100);
