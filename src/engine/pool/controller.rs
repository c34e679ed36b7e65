//! The controllers that ticks update: utilization window, brake and severity.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::engine::gate::PoolShedding;
use crate::engine::snapshot::StoredPool;
use crate::shed::brake::Brake;
use crate::shed::slow_law::{Controller, STEP_MAX, SlowSeverity};
use crate::shed::window::UtilizationWindow;

#[derive(Debug)]
pub(in crate::engine) struct PoolController {
    pub(super) window: UtilizationWindow,
    pub(super) brake: Brake,
    pub(super) severity: SlowSeverity,
    /// The configuration that the severity is computed for.
    pub(super) began: Option<Arc<PoolShedding>>,
    /// State restored after a restart, until the first configuration arrives.
    inherited: Option<(Controller, SlowSeverity, Timestamp)>,
    pub(super) ticked: Option<Timestamp>,
    pub(super) stepped: Option<Timestamp>,
    pub(super) slot_nanos: u128,
    /// The slot-time integral of live sessions at the last tick.
    pub(super) live_nanos: u128,
    /// Busy slot-time, and the integrals of busy slots at the last tick: of sessions with slots, and without.
    pub(super) busy_nanos: u128,
    pub(super) busy_before: [u128; 2],
}

impl Default for PoolController {
    fn default() -> PoolController {
        PoolController {
            window: UtilizationWindow::default(),
            brake: Brake::default(),
            severity: SlowSeverity::at_rest(&Controller::default()),
            began: None,
            inherited: None,
            ticked: None,
            stepped: None,
            slot_nanos: 0,
            live_nanos: 0,
            busy_nanos: 0,
            busy_before: [0; 2],
        }
    }
}

impl PoolController {
    /// Adds the slot time since the last tick: of live sessions, or else of the configured slots. Likewise the busy time
    /// (`busy_nanos`: of sessions with slots, and without), as work of sessions without slots occupies none of the others.
    pub(super) fn add_slot_time(
        &mut self,
        at: Timestamp,
        (live_nanos, live): (u128, u32),
        busy_nanos: [u128; 2],
        configured: Option<u32>,
    ) {
        let before = std::mem::replace(&mut self.live_nanos, live_nanos);
        let passed = live_nanos.saturating_sub(before);
        let [with_slots, without] = busy_nanos;
        let [with_slots_before, without_before] = std::mem::replace(&mut self.busy_before, busy_nanos);
        self.busy_nanos += with_slots.saturating_sub(with_slots_before);
        self.slot_nanos += if live > 0 || passed > 0 {
            passed
        } else {
            self.busy_nanos += without.saturating_sub(without_before);
            let elapsed = self.ticked.map_or(Duration::ZERO, |ticked| at.since(ticked));
            elapsed.as_nanos() * u128::from(configured.unwrap_or(0))
        };
    }

    /// Keeps the severity, within the range of the parameters of the shedding controller. Without a controller, and at first,
    /// it is at rest.
    pub(super) fn reset_if_changed(&mut self, watch: &Arc<PoolShedding>) {
        if self.began.as_ref().is_some_and(|began| Arc::ptr_eq(began, watch)) {
            return;
        }
        let parameters = |of: &PoolShedding| (of.controller, of.shed.workers.is_some());
        if self.began.as_ref().is_none_or(|began| parameters(began) != parameters(watch)) {
            let inherited = self.inherited.take().map(|(_, severity, _)| severity);
            let before = inherited.or(self.began.as_ref().map(|_| self.severity));
            let before = before.filter(|_| watch.shed.workers.is_some());
            self.severity = before.map_or(SlowSeverity::at_rest(&watch.controller), |before| {
                SlowSeverity::restore(&watch.controller, before.value(), before.time_without_readings())
            });
        }
        self.began = Some(Arc::clone(watch));
    }

    /// The state of the shedding controller, for the snapshot.
    pub(in crate::engine) fn kept(&self, pool: &str) -> Option<StoredPool> {
        let stepped = self.stepped.or(self.ticked).unwrap_or_default();
        let began = self.began.as_ref().map(|watch| (watch.controller, self.severity, stepped));
        let (controller, severity, stepped) = began.or(self.inherited)?;
        let Controller { good, bad, after, full, leak } = controller;
        Some(StoredPool {
            name: pool.into(),
            parameters: [good, bad, after, full, leak],
            severity: severity.value(),
            silent_nanos: u64::try_from(severity.time_without_readings().as_nanos()).unwrap_or(u64::MAX),
            stepped,
        })
    }

    /// Restores the shedding controller; the downtime counts as time without a signal.
    pub(in crate::engine) fn inherit(&mut self, stored: &StoredPool, at: Timestamp) {
        let [good, bad, after, full, leak] = stored.parameters;
        let controller = Controller { good, bad, after, full, leak };
        let silent = Duration::from_nanos(stored.silent_nanos);
        let severity = SlowSeverity::restore(&controller, stored.severity, silent)
            .after_missing_readings(&controller, at.since(stored.stepped));
        self.inherited = Some((controller, severity, at));
    }

    /// Makes one step of the shedding controller, at most once a second.
    pub(super) fn step(&mut self, watch: &PoolShedding, utilization: Option<f64>, at: Timestamp) {
        let Some(stepped) = self.stepped else {
            self.stepped = Some(at);
            return;
        };
        let elapsed = at.since(stepped);
        if elapsed < STEP {
            return;
        }
        // After a gap steps stay on their former phase.
        let whole = u32::try_from(elapsed.as_secs() / STEP.as_secs()).ok().filter(|_| elapsed > STEP_MAX);
        self.stepped = Some(whole.map_or(at, |steps| stepped.after(STEP * steps)));
        if watch.shed.workers.is_some() {
            self.severity.step(&watch.controller, utilization, elapsed);
        }
    }
}

const STEP: Duration = Duration::from_secs(1);
