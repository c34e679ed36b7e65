//! Periodic work of the server, in one task. It never waits for a decision.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::error;

use super::{ServerState, listener};
use crate::clock::Timestamp;
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
    let (mut file_checked, mut missed_logged) = (None, None);
    let mut pauses = Pauses::default();
    loop {
        ticks.tick().await;
        let stepped_back = shared.clock.sample_utc();
        let now = shared.clock.now();
        if let Some(until) = pauses.deferral(now.at) {
            engine.defer_lease_ends(until);
        }
        if let Some(by) = stepped_back.filter(|by| *by >= LOGGED_STEP_MIN) {
            shared.log_clock_step(by);
        }
        if file_checked.is_none_or(|checked| now.at.since(checked) >= listener::CHECK_EVERY) {
            file_checked = Some(now.at);
            shared.file_check.notify_one();
        }
        engine.tick(now);
        if shared.options.recorder.is_on() {
            shared.options.recorder.note(now.at, None, NotedKind::Tick);
        }
        engine.sweep(now);
        shared.processes.forget_ended(engine);
        shared.options.thread_health.beat_accepting(now.at);
        let is_due = missed_logged.is_none_or(|logged| now.at.since(logged) >= LOG_MISSED_EVERY);
        if is_due && shared.missed.log() {
            missed_logged = Some(now.at);
        }
        if is_idle(&shared) {
            // A connection ends the pause. The next tick is then due, at least one interval after the last.
            let _ = timeout(IDLE_PAUSE, shared.connections.first.notified()).await;
        }
    }
}

/// Finds times in which the daemon stood still: stopped, suspended with its host, or without a core.
#[derive(Debug, Default)]
struct Pauses {
    last: Option<Timestamp>,
    was_late: bool,
}

impl Pauses {
    /// Returns until when leases must not end by their time, at a tick after a pause. Half of the pause suffices: holders
    /// renew a lease of time T every T / 3, so that it had at least 2 T / 3 left, and passed its end in the pause only if
    /// that is longer; its next renewal comes within T / 3.
    fn deferral(&mut self, now: Timestamp) -> Option<Timestamp> {
        let pause = now.since(self.last.replace(now)?);
        let is_late = pause >= PAUSE_MIN;
        // Not twice in a row: on a host where each tick is late, leases still end.
        let was_late = std::mem::replace(&mut self.was_late, is_late);
        (is_late && !was_late).then(|| now.after((pause / 2).min(DEFERRAL_MAX)))
    }
}

/// Whether ticks change nothing until a client connects: no request, no lease and no switch can become due before.
fn is_idle(shared: &ServerState) -> bool {
    shared.connections.is_empty() && shared.engine.is_idle() && !shared.options.recorder.is_on()
}

/// The time between ticks of an idle daemon. A switch that is set meanwhile ends at least a second later, and the socket
/// file is looked at as often.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// The least time between ticks that is a pause. The shortest lease, of 1 s, is renewed every third of it.
const PAUSE_MIN: Duration = Duration::from_millis(500);

/// The longest deferral: work whose holder died meanwhile counts as long.
const DEFERRAL_MAX: Duration = Duration::from_secs(30);

/// The smallest step of the wall clock that is logged: corrections by time servers are smaller.
const LOGGED_STEP_MIN: Duration = Duration::from_millis(100);

/// The least time between log lines about missed decisions: clients report them at any rate.
const LOG_MISSED_EVERY: Duration = Duration::from_secs(10);

/// The pause before a restart, so that housekeeping that always panics does not use the CPU.
const AFTER_PANIC: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn deferrals(times: &[u64]) -> Vec<Option<u64>> {
        let mut pauses = Pauses::default();
        let at = |millis| Timestamp::from_nanos(millis * 1_000_000);
        times.iter().map(|millis| Some(pauses.deferral(at(*millis))?.as_nanos() / 1_000_000)).collect()
    }

    #[test]
    fn defers_after_a_pause_and_not_twice_in_a_row() {
        assert_eq!(deferrals(&[1_000, 1_250, 1_600]), [None, None, None], "ticks that are late a little");
        assert_eq!(deferrals(&[0, 4_000, 4_250, 8_250]), [None, Some(6_000), None, Some(10_250)]);
        assert_eq!(deferrals(&[0, 1_000, 2_000, 3_000]), [None, Some(1_500), None, None]);
        assert_eq!(deferrals(&[0, 3_600_000]), [None, Some(3_630_000)], "at most 30 s");
    }
}
