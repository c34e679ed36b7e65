//! SOCKETS: listen, one connection, drain. Nothing here holds a limit of its own; time is read here, once a batch.

mod accept;
mod access;
mod activity;
mod answer;
mod connection;
mod connections;
mod decision_thread;
mod entrance;
mod fair_queue;
mod grants;
mod held;
mod hello;
mod judge;
mod listener;
mod membership;
mod missed;
mod noting;
mod parked;
mod pool_access;
mod processes;
mod pulse;
mod stream;
mod telemetry;
mod units;
mod word;
mod work;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

pub use access::DomainAccess;
pub use connections::ConnectionLimits;
pub use listener::{BindError, Listener, NotTaken};
pub use pool_access::{PoolAccess, PoolLimits};
pub use pulse::Pulse;
pub use telemetry::Telemetry;
pub use units::engine_cost;

use crate::clock::{Clock, Timestamp};
use crate::engine::{Asker, Engine, TICK_MILLIS};
use crate::record::Recorder;
use connections::Connections;
use decision_thread::DecisionThread;
use hello::Greeting;
use missed::Missed;
use processes::Processes;
use telemetry::{Client, NotParked};
use word::Word;

/// How the server is to run.
#[derive(Debug)]
pub struct Options {
    /// Decision threads, at least 1.
    pub threads: usize,
    /// How many may be connected.
    pub connections: ConnectionLimits,
    /// Who may ask about which domain.
    pub access: DomainAccess,
    /// Who may work in which pool.
    pub pools: PoolAccess,
    /// What is counted.
    pub telemetry: Arc<Telemetry>,
    /// Whether decision threads ask the scheduler for short slices.
    pub short_slices: bool,
    /// Where threads note that they are there, made for as many as there are.
    pub pulse: Arc<Pulse>,
    /// Makes the calls that requests wait for, where there is somebody to call.
    pub asker: Option<Asker>,
    /// Where what is judged is put aside while somebody records.
    pub recorder: Arc<Recorder>,
}

/// What every connection needs.
#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    connections: Connections,
    processes: Processes,
    access: DomainAccess,
    pools: PoolAccess,
    greeting: Greeting,
    missed: Missed,
    pulse: Arc<Pulse>,
    telemetry: Arc<Telemetry>,
    asker: Option<Asker>,
    recorder: Arc<Recorder>,
    /// What is said of requests that find no room to wait in.
    crowd: Mutex<Word>,
    /// Limits the log lines about connections closed because the account of their user is full.
    full: Mutex<Word>,
    /// What is said of a wall clock that was set back.
    clock_word: Mutex<Word>,
}

impl Shared {
    /// Takes a client's report of decisions made without us.
    fn report(&self, client: Client, missed: &crate::protocol::Missed) {
        if !missed.is_empty() {
            self.missed.report(missed);
            self.telemetry.missed_by(client, missed);
        }
    }

    /// Says that the wall clock went back. The log is not written under the lock.
    fn note_clock_step(&self, by: Duration, now: Timestamp) {
        self.telemetry.clock_stepped_back();
        let due = self.clock_word.lock().unwrap_or_else(PoisonError::into_inner).is_due(now);
        if let Some(steps) = due {
            warn!(
                by_seconds = by.as_secs_f64(),
                steps, "the wall clock was set back: no window counts longer for it than its own length"
            );
        }
    }

    /// A request that a call might have helped is judged at once.
    #[cold]
    fn note_not_parked(&self, why: NotParked, now: Timestamp) {
        self.telemetry.was_not_parked(why);
        // The lock is not held while the line is put together.
        let due = self.crowd.lock().unwrap_or_else(PoisonError::into_inner).is_due(now);
        if let Some(requests) = due {
            warn!(
                requests,
                "more requests wait for calls of Redis than there is room for: the others go by `on_redis_down`"
            );
        }
    }
}

/// A server whose decision threads run.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<DecisionThread>,
}

/// Starts the decision threads, as many as can be had. To be called in the runtime that the server is to run in.
///
/// # Errors
/// Not one can be started.
pub fn start(engine: &Arc<Engine>, clock: &Arc<Clock>, options: Options) -> std::io::Result<Server> {
    let shared = Arc::new(Shared {
        engine: Arc::clone(engine),
        clock: Arc::clone(clock),
        connections: Connections::new(options.connections),
        processes: Processes::new(options.connections),
        access: options.access,
        pools: options.pools,
        greeting: Greeting::new(),
        missed: Missed::default(),
        pulse: options.pulse,
        telemetry: options.telemetry,
        asker: options.asker,
        recorder: options.recorder,
        crowd: Mutex::default(),
        full: Mutex::default(),
        clock_word: Mutex::default(),
    });
    let mut threads = Vec::new();
    for number in 0..options.threads.max(1) {
        match DecisionThread::start(number, engine, &shared, options.short_slices) {
            Ok(thread) => threads.push(thread),
            Err(error) if number == 0 => return Err(error),
            // One decides as well, with less to spare.
            Err(error) => {
                warn!(%error, threads = number, wanted = options.threads, "fewer decision threads run than `threads` says: raise TasksMax of the unit and restart");
                shared.pulse.go_without(number);
                break;
            }
        }
    }
    Ok(Server { shared, threads })
}

impl Server {
    /// Serves until `shutdown` is cancelled, then drains: every request that was received is answered.
    ///
    /// # Errors
    /// A listener that cannot be watched.
    pub async fn run(self, listener: Listener, shutdown: CancellationToken) -> std::io::Result<()> {
        let Server { shared, threads } = self;
        serve(listener, &shared, threads, &shutdown).await
    }
}

async fn serve(
    listener: Listener,
    shared: &Arc<Shared>,
    threads: Vec<DecisionThread>,
    shutdown: &CancellationToken,
) -> std::io::Result<()> {
    let housekeeping = tokio::spawn(keep_keeping_house(Arc::clone(shared)));
    accept::run(&listener, shared, &threads, shutdown).await?;
    listener.leave();
    accept::let_in_who_waits(&listener, shared, &threads);
    // With it goes the lock: another daemon may start while this one drains.
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
    shared.missed.tell_now();
    Ok(())
}

/// Keeps house, again after a panic of it: without ticks leases would stay for ever.
async fn keep_keeping_house(shared: Arc<Shared>) {
    loop {
        // Dropped, it takes the task along.
        let mut task = JoinSet::new();
        task.spawn(keep_house(Arc::clone(&shared)));
        let _ = task.join_next().await;
        error!("housekeeping panicked: it is begun again, please report this");
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

/// What happens by itself: the engine's ticks, the wall clock, the word about decisions made without us.
async fn keep_house(shared: Arc<Shared>) {
    let engine = &shared.engine;
    let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MILLIS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let stepped_back = shared.clock.sample_utc();
        let now = shared.clock.now();
        if let Some(by) = stepped_back.filter(|by| *by >= STEP_TOLD) {
            shared.note_clock_step(by, now.at);
        }
        engine.tick(now);
        shared.note_tick(now);
        engine.sweep(now);
        shared.pulse.beat_accepting(now.at);
        shared.missed.tell(now.at);
    }
}

/// A step of the wall clock that is worth a word: time servers set a clock by less.
const STEP_TOLD: Duration = Duration::from_millis(100);

/// Housekeeping that always panics costs nothing.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// A drain takes no longer: whoever has not read his replies by then loses them.
const DRAIN_MAX: Duration = Duration::from_secs(1);
