//! Listeners and connections of an adapter: its own limits.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use super::peer::{Peer, Token};
use super::{AdapterCounters, AdapterState, LAST_ANSWER_MAX};
use crate::server::{Listener, retry_until_open};

/// One adapter: its name, its part of all connections, and the service of one.
pub(super) trait Adapter: Send + Sync + Sized + 'static {
    /// The name in logs.
    const NAME: &str;
    /// The key in `adapters` of the settings.
    const KEY: &str;
    /// It takes one in so many of `connections.max`, and of `connections.per_user`.
    const PART: u32;
    const PART_OF_USER: u32;

    fn base(&self) -> &AdapterState;

    /// Serves one connection to its end.
    fn serve(
        self: Arc<Self>,
        socket: impl AdapterSocket,
        peer: Peer,
        place: Place,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send;
}

/// A connection, of either kind.
pub(super) trait AdapterSocket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AdapterSocket for S {}

/// Serves all listeners of the settings until `stop`.
pub(super) async fn serve<A: Adapter>(adapter: &Arc<A>, stop: &CancellationToken) {
    let places = Arc::<Places>::default();
    let served =
        async { tokio::join!(serve_socket(adapter, &places, stop), serve_port(adapter, &places, stop)) };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = served => {}
    }
    // The requests in flight are answered.
    places.tasks.close();
    let _ = tokio::time::timeout(LAST_ANSWER_MAX, places.tasks.wait()).await;
}

async fn serve_socket<A: Adapter>(adapter: &Arc<A>, places: &Arc<Places>, stop: &CancellationToken) {
    let settings = &adapter.base().listen;
    let Some(path) = &settings.socket else { return };
    let bind = async || {
        let bound = Listener::bind(path, settings.mode, settings.group);
        let listener = bound.map_err(|error| error.to_string())?;
        let watched = listener.watch().map_err(|error| error.to_string())?;
        Ok((watched, listener))
    };
    let (listener, _path) = retry_until_open(bind().await, bind, &not_served::<A>()).await;
    info!(socket = %path.display(), "{} is served", A::NAME);
    let accept = async || {
        let (socket, _) = listener.accept().await?;
        let user = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
        Ok((socket, Peer { user, token: None }))
    };
    accept_each(adapter, places, stop, accept).await;
}

async fn serve_port<A: Adapter>(adapter: &Arc<A>, places: &Arc<Places>, stop: &CancellationToken) {
    let settings = &adapter.base().listen;
    let Some(address) = settings.address else { return };
    let bind = async || {
        let token = Token::read(&settings.token_file)?;
        let listener = TcpListener::bind(address).await;
        Ok((listener.map_err(|error| format!("{address}: {error}"))?, Arc::new(token)))
    };
    let (listener, token) = retry_until_open(bind().await, bind, &not_served::<A>()).await;
    // Port 0 has become one that was free.
    let address = listener.local_addr().unwrap_or(address);
    info!(%address, "{} is served", A::NAME);
    let user = rustix::process::geteuid().as_raw();
    let accept = async || {
        let (socket, _) = listener.accept().await?;
        let _ = socket.set_nodelay(true);
        Ok((socket, Peer { user, token: Some(Arc::clone(&token)) }))
    };
    accept_each(adapter, places, stop, accept).await;
}

fn not_served<A: Adapter>() -> String {
    format!("{} is not served: it is tried again every second; help: correct `adapters.{}`", A::NAME, A::KEY)
}

async fn accept_each<A: Adapter, S: AdapterSocket>(
    adapter: &Arc<A>,
    places: &Arc<Places>,
    stop: &CancellationToken,
    mut accept: impl AsyncFnMut() -> io::Result<(S, Peer)>,
) {
    loop {
        match accept().await {
            Ok((socket, peer)) => match Places::take(places, adapter, peer.user) {
                Some(place) => {
                    places.tasks.spawn(Arc::clone(adapter).serve(socket, peer, place, stop.clone()));
                }
                // A closed connection is the answer.
                None => {
                    adapter.base().counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                }
            },
            Err(error) => {
                debug!(%error, "a connection was not accepted");
                // For want of descriptors it would fail again at once.
                tokio::time::sleep(PAUSE).await;
            }
        }
        tokio::task::yield_now().await;
    }
}

/// The connections: their tasks, and the use of each user.
#[derive(Debug, Default)]
struct Places {
    by_user: Mutex<HashMap<u32, PlacesOfUser>>,
    tasks: TaskTracker,
}

#[derive(Clone, Copy, Debug, Default)]
struct PlacesOfUser {
    open: usize,
    /// The bytes of requests that are not answered.
    bytes: usize,
}

/// One connection. Its place is free once this drops.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    counters: Arc<AdapterCounters>,
    user: u32,
}

/// Bytes of a request, until this is dropped.
#[derive(Debug)]
pub(super) struct RequestBytes<'p> {
    place: &'p Place,
    bytes: usize,
}

impl Places {
    /// Takes a place, within the part of the adapter.
    fn take<A: Adapter>(places: &Arc<Places>, adapter: &Arc<A>, user: u32) -> Option<Place> {
        let mut by_user = places.by_user.lock();
        let open: usize = by_user.values().map(|of_user| of_user.open).sum();
        let of_user = by_user.entry(user).or_default();
        let limits = adapter.base().limits;
        if open >= (limits.max / A::PART).max(1) as usize
            || of_user.open >= (limits.per_user / A::PART_OF_USER).max(1) as usize
        {
            return None;
        }
        of_user.open += 1;
        let counters = Arc::clone(&adapter.base().counters);
        counters.connections.store(open as u64 + 1, Ordering::Relaxed);
        Some(Place { places: Arc::clone(places), counters, user })
    }
}

impl Place {
    /// Starts to count the bytes of a request.
    pub(super) fn hold(&self) -> RequestBytes<'_> {
        RequestBytes { place: self, bytes: 0 }
    }
}

impl RequestBytes<'_> {
    /// Adds bytes; `false`: the user, or all together, would have too many.
    #[must_use]
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        let mut by_user = self.place.places.by_user.lock();
        let all: usize = by_user.values().map(|of_user| of_user.bytes).sum();
        let Some(of_user) = by_user.get_mut(&self.place.user) else { return false };
        let has_room = of_user.bytes + bytes <= BYTES_OF_USER_MAX && all + bytes <= BYTES_MAX;
        if has_room {
            of_user.bytes += bytes;
            self.bytes += bytes;
        }
        has_room
    }
}

impl Drop for RequestBytes<'_> {
    fn drop(&mut self) {
        if let Some(of_user) = self.place.places.by_user.lock().get_mut(&self.place.user) {
            of_user.bytes -= self.bytes;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_user = self.places.by_user.lock();
        if let Some(of_user) = by_user.get_mut(&self.user) {
            of_user.open -= 1;
        }
        by_user.retain(|_, of_user| of_user.open > 0);
        let open: usize = by_user.values().map(|of_user| of_user.open).sum();
        self.counters.connections.store(open as u64, Ordering::Relaxed);
    }
}

/// The largest request of an adapter, some times.
const BYTES_OF_USER_MAX: usize = 8 * 1_024 * 1_024;

/// Some users, each with all of its own.
const BYTES_MAX: usize = 4 * BYTES_OF_USER_MAX;

const PAUSE: Duration = Duration::from_millis(100);
