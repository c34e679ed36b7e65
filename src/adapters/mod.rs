//! ADAPTERS: other ways to ask than the socket. An adapter is a client of the daemon's own protocol, on a thread of its own:
//! it decides nothing, no decision waits for it, and its faults end none but its own connections.

mod bodies;
mod decision;
mod digest_table;
mod envoy;
mod exchange;
mod handler;
mod json;
mod link;
mod listen;
mod resp;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use hyper::header::HeaderName;
use parking_lot::Mutex;
use strum::VariantNames;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::clock::Clock;
pub(crate) use crate::protocol::{DescriptorList, shorten_value};
use crate::server::{ConnectionLimits, Connector, FairQueue};
use envoy::own_limits::OwnLimitTable;
use exchange::HttpSessions;
use handler::AdapterPeer;
use resp::throttle::ThrottleTable;

/// Where an adapter listens, and for which clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
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
}

impl Endpoint {
    /// Reads the token of clients of the loopback address as the adapter does. Fails with the reason why the file has none.
    pub(crate) fn check_token_file(path: &Path) -> Result<(), String> {
        handler::Token::read(path).map(drop)
    }
}

/// The meaning of a request of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAuth {
    /// The domain.
    pub domain: Box<str>,
    /// The name of each attribute, and the header that has its value.
    pub attributes: Vec<(Box<str>, HeaderName)>,
}

/// Counts of one adapter since the start, its open connections, and its sessions.
#[derive(Debug, Default)]
pub struct AdapterCounters {
    /// Open connections.
    pub connections: AtomicU64,
    /// Listeners of the settings that cannot listen yet.
    pub unserved: AtomicU64,
    /// Connections that were closed at once.
    pub connections_refused: AtomicU64,
    /// Sessions in use.
    pub sessions: AtomicU64,
    answers: [AtomicU64; AnswerKind::VARIANTS.len()],
    /// Requests that were not judged, as they are malformed or not allowed.
    pub unjudged: AtomicU64,
    /// The states of limits in requests that gave way before they were fresh.
    pub evictions: AtomicU64,
    /// The descriptors of Envoy of which a field was ignored.
    pub ignored: AtomicU64,
}

/// The kind of an answer, for metrics.
#[derive(Clone, Copy, Debug, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
enum AnswerKind {
    Allowed,
    Refused,
    Done,
    Degraded,
    Rejected,
}

impl AdapterCounters {
    /// Returns the answers by kind.
    pub fn answers(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.answers.iter().map(|count| count.load(Ordering::Relaxed));
        AnswerKind::VARIANTS.iter().copied().zip(counts)
    }

    fn count(&self, kind: AnswerKind) {
        let count = self.answers.get(kind as usize);
        let _ = count.map(|count| count.fetch_add(1, Ordering::Relaxed));
    }
}

/// The protocol of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterProtocol {
    /// HTTP, with the requests of proxies if the settings name some.
    Http(Option<HttpAuth>),
    /// RESP, the protocol of Redis.
    Resp,
    /// The rate limit service of Envoy.
    Envoy,
}

impl AdapterProtocol {
    /// Returns the name for people, and the name in settings and metrics.
    pub fn names(&self) -> (&'static str, &'static str) {
        match self {
            AdapterProtocol::Http(_) => ("HTTP", "http"),
            AdapterProtocol::Resp => ("RESP", "resp"),
            AdapterProtocol::Envoy => ("Envoy's rate limit service", "envoy"),
        }
    }
}

/// Returns the work of the thread of an adapter, until `stop`. A listener that cannot be opened is logged and tried again.
pub fn work(
    protocol: AdapterProtocol,
    endpoint: Endpoint,
    limits: ConnectionLimits,
    connector: Connector,
    clock: Arc<Clock>,
    counters: Arc<AdapterCounters>,
    stop: CancellationToken,
) -> impl FnMut() + Send + 'static {
    let fair_queue = Arc::new(FairQueue::new(Arc::clone(&clock)));
    let state = Arc::new(AdapterState {
        fair_queue: Arc::clone(&fair_queue),
        protocol,
        endpoint,
        limits,
        connector,
        clock,
        counters,
        sessions: HttpSessions::default(),
        throttle: LazyLock::new(Mutex::default),
        own_limits: LazyLock::new(Mutex::default),
    });
    move || {
        let sleeping = Arc::clone(&fair_queue);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().event_interval(POLLS_PER_EVENTS);
        let runtime = runtime.on_thread_park(move || sleeping.sleep()).build();
        #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
        let runtime = runtime.expect("descriptors for a runtime");
        runtime.spawn(Arc::clone(&fair_queue).begin_rounds());
        runtime.block_on(listen::serve(&state, &stop));
    }
}

#[derive(Debug)]
struct AdapterState {
    /// The time of the thread, by user.
    fair_queue: Arc<FairQueue>,
    protocol: AdapterProtocol,
    endpoint: Endpoint,
    /// The limits of the socket, of which the adapter takes a part.
    limits: ConnectionLimits,
    connector: Connector,
    clock: Arc<Clock>,
    counters: Arc<AdapterCounters>,
    sessions: HttpSessions,
    /// The buckets of CL.THROTTLE.
    throttle: LazyLock<Mutex<ThrottleTable>>,
    /// The windows of the limits that descriptors of Envoy have of their own.
    own_limits: LazyLock<Mutex<OwnLimitTable>>,
}

impl AdapterState {
    /// Counts and logs a request that was not judged. `why` has no value of it.
    fn report_unjudged(&self, why: &str) {
        self.counters.unjudged.fetch_add(1, Ordering::Relaxed);
        match self.protocol {
            AdapterProtocol::Envoy => {
                warn!("a request of Envoy was not judged, and passes unless its filter denies: {why}");
            }
            AdapterProtocol::Http(_) | AdapterProtocol::Resp => {
                let name = self.protocol.names().0;
                warn!("a request by {name} was not judged, and passes unless its application refuses: {why}");
            }
        }
    }

    /// Whether a client may name this domain: over TCP only those of the settings.
    fn opens(&self, domain: &str, peer: &AdapterPeer) -> bool {
        peer.token.is_none() || self.endpoint.domains.iter().any(|open| **open == *domain)
    }
}

/// The status that tidegate would answer, where a proxy answers another.
const STATUS_HEADER: &str = "tidegate-status";

/// Polls of connections between two looks at the sockets. A single user's are not in turn, and a poll may take as long as a
/// slice: with the 61 of tokio, another user's first connection would wait for them.
const POLLS_PER_EVENTS: u32 = 4;

/// The target of log lines of this module, and the prefix of those of its submodules.
pub const LOG_TARGET: &str = module_path!();
