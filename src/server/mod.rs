//! SOCKETS: listens, serves connections, drains. This room has no rate limits of its own. It reads the clock, once per
//! batch.

mod accept;
mod access;
mod answer;
mod connection;
mod connections;
mod connector;
mod decision_thread;
mod fair_queue;
mod housekeeping;
mod listener;
mod membership;
mod memory_charge;
mod pending;
mod processes;
mod pulse;
mod request;
mod stream;
mod telemetry;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use access::{DomainAccess, PoolAccess, PoolLimits};
pub use connections::ConnectionLimits;
pub use connector::Connector;
pub use fair_queue::{FairQueue, QueueMembership};
pub use listener::{BACKLOG, BindError, LOCK_MARK, Listener, SocketFile, connect_at_once, retry_until_open};
pub use memory_charge::AdapterMemory;
pub use pulse::ThreadHealth;
pub use request::to_engine_cost;
pub use telemetry::{RAISED, ServerCounters};

use crate::clock::Clock;
use crate::engine::{Engine, SharedRemoteChecker};
use crate::protocol::{Code, MissedCounts, WireReply, encode_reply};
use crate::record::Recorder;
use crate::sys;
use connections::ConnectionRegistry;
use decision_thread::DecisionThread;
use processes::Processes;
use telemetry::{ClientKind, MissedReports, NotPending};

#[derive(Debug)]
pub struct ServerOptions {
    /// Decision threads, at least 1.
    pub threads: usize,
    pub connections: ConnectionLimits,
    pub access: DomainAccess,
    pub pools: PoolAccess,
    pub telemetry: Arc<ServerCounters>,
    /// Whether decision threads request short slices from the scheduler.
    pub request_short_slices: bool,
    /// The health of the threads, made for `threads` decision threads.
    pub thread_health: Arc<ThreadHealth>,
    /// Starts remote checks; `None` without a fleet.
    pub remote_checker: Option<SharedRemoteChecker>,
    /// Receives requests and decisions while a recording runs.
    pub recorder: Arc<Recorder>,
}

/// The state that all connections share.
#[derive(Debug)]
struct ServerState {
    options: ServerOptions,
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    connections: ConnectionRegistry,
    processes: Processes,
    /// Notified when the socket file is to be looked at. A timer of the accepting task would wake the idle daemon once more.
    file_check: Notify,
    /// A number that differs at every start, so that a client detects a restart.
    boot: u64,
    missed: MissedReports,
}

impl ServerState {
    #[inline]
    fn add_missed(&self, client: ClientKind, missed: &MissedCounts) {
        if !missed.is_empty() {
            self.missed.add(missed);
            self.options.telemetry.add_missed(client, missed);
        }
    }

    /// Counts an error and writes its ERROR, unless the client requested no reply.
    #[cold]
    fn write_error(&self, id: Option<u64>, code: Code, message: &str, replies: &mut Vec<u8>) {
        self.options.telemetry.count_error(code);
        if id.is_some() {
            encode_reply(replies, &WireReply::Error { id, code, message });
        }
    }

    /// Counts and logs a step back of the wall clock.
    fn log_clock_step(&self, by: Duration) {
        self.options.telemetry.clock_steps_back.fetch_add(1, Ordering::Relaxed);
        let by_seconds = by.as_secs_f64();
        warn!(by_seconds, "the wall clock was set back: windows still last no longer than their own length");
    }

    /// Counts and logs a request that is decided without waiting for its remote check.
    #[cold]
    fn count_not_pending(&self, reason: NotPending) {
        self.options.telemetry.count_not_pending(reason);
        warn!("too many requests wait for remote checks: further ones are decided by `on_redis_down`");
    }
}

#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerState>,
    threads: Vec<DecisionThread>,
}

/// Starts the decision threads, as many as the system allows. Call it in the runtime of the server.
///
/// # Errors
/// No thread can be started.
pub fn start(engine: &Arc<Engine>, clock: &Arc<Clock>, options: ServerOptions) -> std::io::Result<Server> {
    let shared = Arc::new(ServerState {
        engine: Arc::clone(engine),
        clock: Arc::clone(clock),
        connections: ConnectionRegistry::new(options.connections),
        processes: Processes::new(options.connections),
        file_check: Notify::new(),
        // Without randomness a client misses a restart; nothing else depends on this number.
        boot: u64::from_le_bytes(sys::random_bytes().unwrap_or_default()) >> 1,
        missed: MissedReports::default(),
        options,
    });
    let options = &shared.options;
    let mut threads = Vec::new();
    for number in 0..options.threads.max(1) {
        match DecisionThread::start(number, engine, &shared, options.request_short_slices) {
            Ok(thread) => threads.push(thread),
            Err(error) if number == 0 => return Err(error),
            // Fewer threads serve all requests too, with less capacity.
            Err(error) => {
                warn!(%error, threads = number, wanted = options.threads, "fewer decision threads run than `threads` says: raise TasksMax of the unit and restart");
                options.thread_health.mark_not_started(number);
                break;
            }
        }
    }
    Ok(Server { shared, threads })
}

impl Server {
    /// Returns a way for adapters to connect from within this process.
    pub fn connector(&self) -> Connector {
        Connector::new(&self.shared, &self.threads)
    }

    /// Serves until `shutdown` is cancelled, then drains: every received request is answered.
    ///
    /// # Errors
    /// The listener cannot be registered with the runtime.
    pub async fn run(self, mut listener: Listener, shutdown: CancellationToken) -> std::io::Result<()> {
        let Server { shared, threads } = self;
        let housekeeping = tokio::spawn(housekeeping::supervise(Arc::clone(&shared)));
        accept::run(&mut listener, &shared, &threads, &shutdown).await?;
        listener.remove_path();
        accept::admit_backlog(&listener, &shared, &threads);
        // Releases the lock: another daemon may start while this one drains.
        drop(listener);
        shared.connections.drain();
        let drained = tokio::time::timeout(DRAIN_MAX, async {
            for thread in threads {
                thread.join().await;
            }
        });
        if drained.await.is_err() {
            warn!("some clients did not read their last replies in time");
        }
        housekeeping.abort();
        shared.missed.log();
        Ok(())
    }
}

/// The longest drain: a client that has not read its replies by then loses them.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// The target of log lines of this module, and the prefix of those of its submodules.
pub const LOG_TARGET: &str = module_path!();
