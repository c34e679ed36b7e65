//! ADAPTERS: other ways to ask than the socket. An adapter is a client of the daemon's own protocol, on a thread of its own:
//! it decides nothing, no decision waits for it, and its faults end none but its own connections.

mod answers;
mod decision;
mod encode;
mod envoy;
mod exchange;
mod http;
mod listen;
mod peer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::server::{ConnectionLimits, Connector};
pub use http::{HttpAuth, HttpSettings};

/// Where an adapter listens, and who may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenSettings {
    /// The Unix socket; `None`: none.
    pub socket: Option<PathBuf>,
    /// The permission bits of the socket.
    pub mode: u32,
    /// The group of the socket; `None`: the daemon's own.
    pub group: Option<u32>,
    /// The loopback address; `None`: none.
    pub address: Option<SocketAddr>,
    /// The file of the token that clients of the loopback address send.
    pub token_file: PathBuf,
    /// The domains that clients of the loopback address may name.
    pub domains: Vec<Box<str>>,
}

/// Counts of an adapter since the start, its open connections, and its sessions.
#[derive(Debug, Default)]
pub struct AdapterCounters {
    connections: AtomicU64,
    connections_refused: AtomicU64,
    sessions: AtomicU64,
    ignored: AtomicU64,
    answers: [AtomicU64; AnswerKind::NAMES.len()],
}

/// The kind of an answer, for metrics.
#[derive(Clone, Copy, Debug)]
enum AnswerKind {
    Allowed,
    Refused,
    Degraded,
    Rejected,
    Done,
}

impl AnswerKind {
    const NAMES: [&str; 5] = ["allowed", "refused", "degraded", "rejected", "done"];
}

impl AdapterCounters {
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

    /// Returns the descriptors of which a field was ignored.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored.load(Ordering::Relaxed)
    }

    /// Returns the answers by kind.
    pub fn answers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        AnswerKind::NAMES.into_iter().zip(self.answers.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    fn count(&self, kind: AnswerKind) {
        let count = self.answers.get(kind as usize);
        let _ = count.map(|count| count.fetch_add(1, Ordering::Relaxed));
    }
}

/// The thread of an adapter, until this is dropped.
#[derive(Debug)]
pub struct AdapterThread {
    stop: CancellationToken,
    ended: Receiver<()>,
}

impl AdapterThread {
    /// Returns the handle of a thread, and its work until `stop`. A listener that cannot be opened is logged and tried again.
    fn start<F: Future<Output = ()>>(
        stop: CancellationToken,
        serve: impl Fn(CancellationToken) -> F + Send + 'static,
    ) -> (AdapterThread, impl FnMut() + Send + 'static) {
        let (tell_ended, ended) = sync_channel(1);
        let stopped = stop.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
            let runtime = runtime.expect("descriptors for a runtime");
            runtime.block_on(serve(stopped.clone()));
            let _ = tell_ended.try_send(());
        };
        (AdapterThread { stop, ended }, work)
    }
}

impl Drop for AdapterThread {
    fn drop(&mut self) {
        self.stop.cancel();
        // The path of the socket is removed then.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

/// The state that all connections of an adapter share.
#[derive(Debug)]
pub struct AdapterState {
    /// Where it listens.
    pub listen: ListenSettings,
    /// The limits of the socket, of which the adapter takes a part.
    pub limits: ConnectionLimits,
    /// The way to the decision threads.
    pub connector: Connector,
    /// Its counters.
    pub counters: Arc<AdapterCounters>,
}

impl AdapterState {
    /// Whether a client may name this domain: one over TCP only those of the settings.
    fn is_open(&self, peer: &peer::Peer, domain: &str) -> bool {
        peer.token.is_none() || self.listen.domains.iter().any(|open| **open == *domain)
    }
}

/// How long a client waits for a decision: the default of every client.
fn deadline() -> Duration {
    // A busy machine must not decide a test.
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    if std::env::var_os("TIDEGATE_DEBUG_PATIENT").is_some() {
        return Duration::from_secs(10);
    }
    DEADLINE
}

const DEADLINE: Duration = Duration::from_millis(20);

/// The status that tidegate would answer, where a proxy answers another.
const STATUS_HEADER: &str = "tidegate-status";

/// A body on a socket of this host is there at once.
const BODY_PATIENCE: Duration = Duration::from_secs(2);

/// Longer than the deadline of a request.
const LAST_ANSWER_MAX: Duration = Duration::from_millis(200);

/// How long the end of the daemon waits for the thread.
const END_MAX: Duration = Duration::from_millis(300);
