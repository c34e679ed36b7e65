//! ADAPTERS: other ways to ask than the socket. An adapter is a client of the daemon's own protocol, on a thread of its own:
//! it decides nothing, no decision waits for it, and its faults end none but its own connections.

mod answers;
mod bodies;
mod decision;
mod exchange;
mod handler;
mod listen;
mod openapi;
mod sessions;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use hyper::header::HeaderName;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::server::{ConnectionLimits, Connector};
use sessions::HttpSessions;

/// The settings of the HTTP adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpSettings {
    /// The Unix socket; `None`: none.
    pub socket: Option<PathBuf>,
    /// The permission bits of the socket.
    pub mode: u32,
    /// The group of the socket; `None`: the daemon's own.
    pub group: Option<u32>,
    /// The loopback address; `None`: none.
    pub listen: Option<SocketAddr>,
    /// The file of the token that clients of the loopback address send.
    pub token_file: PathBuf,
    /// The domains that clients of the loopback address may name.
    pub domains: Vec<Box<str>>,
    /// The requests of proxies; `None`: none are answered.
    pub auth: Option<HttpAuth>,
}

/// The meaning of a request of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAuth {
    /// The domain.
    pub domain: Box<str>,
    /// The name of each attribute, and the header that has its value.
    pub attributes: Vec<(Box<str>, HeaderName)>,
}

/// Counts of the HTTP adapter since the start, its open connections, and its sessions.
#[derive(Debug, Default)]
pub struct HttpCounters {
    connections: AtomicU64,
    connections_refused: AtomicU64,
    sessions: AtomicU64,
    answers: [AtomicU64; HttpAnswerKind::NAMES.len()],
}

/// The kind of an answer, for metrics.
#[derive(Clone, Copy, Debug)]
enum HttpAnswerKind {
    Allowed,
    Refused,
    Done,
    Degraded,
    Rejected,
}

impl HttpAnswerKind {
    const NAMES: [&str; 5] = ["allowed", "refused", "done", "degraded", "rejected"];
}

impl HttpCounters {
    /// Returns the open connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the connections that were closed at once.
    #[must_use]
    pub fn connections_refused(&self) -> u64 {
        self.connections_refused.load(Ordering::Relaxed)
    }

    /// Returns the sessions in use.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Returns the answers by kind.
    pub fn answers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        HttpAnswerKind::NAMES.into_iter().zip(self.answers.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    fn count(&self, kind: HttpAnswerKind) {
        let count = self.answers.get(kind as usize);
        let _ = count.map(|count| count.fetch_add(1, Ordering::Relaxed));
    }
}

/// The thread of the HTTP adapter, until this is dropped.
#[derive(Debug)]
pub struct HttpAdapter {
    stop: CancellationToken,
    ended: Receiver<()>,
}

impl HttpAdapter {
    /// Returns the handle of the thread, and its work until `stop`. A listener that cannot be opened is logged and tried again.
    pub fn new(
        settings: HttpSettings,
        limits: ConnectionLimits,
        connector: Connector,
        clock: Arc<Clock>,
        counters: Arc<HttpCounters>,
        stop: CancellationToken,
    ) -> (HttpAdapter, impl FnMut() + Send + 'static) {
        let (tell_ended, ended) = sync_channel(1);
        let state = Arc::new(HttpState {
            settings,
            limits,
            connector,
            clock,
            counters,
            sessions: HttpSessions::default(),
        });
        let stopped = stop.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
            let runtime = runtime.expect("descriptors for a runtime");
            runtime.block_on(listen::serve(&state, &stopped));
            let _ = tell_ended.try_send(());
        };
        (HttpAdapter { stop, ended }, work)
    }
}

impl Drop for HttpAdapter {
    fn drop(&mut self) {
        self.stop.cancel();
        // The path of the socket is removed then.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct HttpState {
    settings: HttpSettings,
    /// The limits of the socket, of which the adapter takes a part.
    limits: ConnectionLimits,
    connector: Connector,
    clock: Arc<Clock>,
    counters: Arc<HttpCounters>,
    sessions: HttpSessions,
}

/// How long the end of the daemon waits for the thread.
const END_MAX: Duration = Duration::from_millis(300);
