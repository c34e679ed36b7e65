//! Periodic work of the server, in one task. It never waits for a decision.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::error;

use super::{ServerState, socket_file};
use crate::engine::TICK_MILLIS;
use crate::record::NotedKind;

/// Runs housekeeping and restarts it after a panic: without ticks, leases would never expire.
pub(super) async fn supervise(shared: Arc<ServerState>) {
    loop {
        // The drop of a `JoinSet` aborts its task.
        let mut task = JoinSet::new();
        task.spawn(run(Arc::clone(&shared)));
        let _ = task.join_next().await;
        error!("housekeeping panicked and is restarted; please report this");
        sleep(AFTER_PANIC).await;
    }
}

/// Runs the engine's ticks, samples of the wall clock, checks of the threads and of the socket file, and the log line about
/// missed decisions.
async fn run(shared: Arc<ServerState>) {
    let engine = &shared.engine;
    let mut ticks = interval(Duration::from_millis(TICK_MILLIS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut file_checked = None;
    loop {
        ticks.tick().await;
        let stepped_back = shared.clock.sample_utc();
        let now = shared.clock.now();
        if let Some(by) = stepped_back.filter(|by| *by >= LOGGED_STEP_MIN) {
            shared.log_clock_step(by, now.at);
        }
        if file_checked.is_none_or(|checked| now.at.since(checked) >= socket_file::CHECK_EVERY) {
            file_checked = Some(now.at);
            shared.file_check.notify_one();
        }
        engine.tick(now);
        if shared.recorder.is_on() {
            shared.recorder.note(now.at, None, NotedKind::Tick);
        }
        engine.sweep(now);
        shared.processes.forget_ended(engine);
        shared.pulse.beat_accepting(now.at);
        shared.missed.log_if_due(now.at);
        if is_idle(&shared) {
            // A connection ends the pause. The next tick is then due, at least one interval after the last.
            let _ = timeout(IDLE_PAUSE, shared.connections.await_first()).await;
        }
    }
}

/// Whether ticks change nothing until a client connects: no request, no lease and no switch can become due before.
fn is_idle(shared: &ServerState) -> bool {
    shared.connections.is_empty() && shared.engine.is_idle() && !shared.recorder.is_on()
}

/// The time between ticks of an idle daemon. A switch that is set meanwhile ends at least a second later, and the socket
/// file is looked at as often.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// The smallest step of the wall clock that is logged: corrections by time servers are smaller.
const LOGGED_STEP_MIN: Duration = Duration::from_millis(100);

/// The pause before a restart, so that housekeeping that always panics does not use the CPU.
const AFTER_PANIC: Duration = Duration::from_millis(100);
