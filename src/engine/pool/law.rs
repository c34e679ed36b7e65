//! What is worked out at ticks: how busy a pool was, whether its brake is on, how hard it sheds.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::engine::watch::Watch;
use crate::shed::brake::Brake;
use crate::shed::slow_law::{STEP_MAX, Severity, SlowLaw};
use crate::shed::window::Window;

/// What is worked out at ticks.
#[derive(Debug)]
pub(super) struct Law {
    pub(super) window: Window,
    pub(super) brake: Brake,
    pub(super) severity: Severity,
    /// The watch whose rest the severity began at.
    pub(super) began: Option<Arc<Watch>>,
    pub(super) ticked: Option<Timestamp>,
    pub(super) stepped: Option<Timestamp>,
    /// Slot-time so far, in nanoseconds.
    pub(super) slot_nanos: u128,
    /// The integral over the slots of live sessions, when it was last looked at.
    pub(super) live_nanos: u128,
}

impl Law {
    pub(super) fn new() -> Law {
        Law {
            window: Window::new(),
            brake: Brake::new(),
            severity: Severity::at_rest(&SlowLaw::default()),
            began: None,
            ticked: None,
            stepped: None,
            slot_nanos: 0,
            live_nanos: 0,
        }
    }

    /// Slot-time since the last tick: of live sessions, else as configured.
    pub(super) fn add_slot_time(
        &mut self,
        at: Timestamp,
        live_nanos: u128,
        live: u32,
        configured: Option<u32>,
    ) {
        let before = std::mem::replace(&mut self.live_nanos, live_nanos);
        let passed = live_nanos.saturating_sub(before);
        self.slot_nanos += if live > 0 || passed > 0 {
            passed
        } else {
            let elapsed = self.ticked.map_or(Duration::ZERO, |ticked| at.since(ticked));
            elapsed.as_nanos() * u128::from(configured.unwrap_or(0))
        };
    }

    /// There is nothing to brake by.
    pub(super) fn release_brake(&mut self) {
        self.brake = Brake::new();
    }

    /// The severity begins at rest; a law that is the same goes on.
    pub(super) fn begin(&mut self, watch: &Arc<Watch>) {
        if self.began.as_ref().is_some_and(|began| Arc::ptr_eq(began, watch)) {
            return;
        }
        if self.began.as_ref().is_none_or(|began| began.law != watch.law) {
            self.severity = Severity::at_rest(&watch.law);
        }
        self.began = Some(Arc::clone(watch));
    }

    /// One step of the slow law, once a second.
    pub(super) fn step(&mut self, watch: &Watch, utilization: Option<f64>, at: Timestamp) {
        let Some(stepped) = self.stepped else {
            self.stepped = Some(at);
            return;
        };
        let elapsed = at.since(stepped);
        if elapsed < STEP {
            return;
        }
        // After a gap the steps fall on the moments that they would have fallen on without it.
        let whole = u32::try_from(elapsed.as_secs() / STEP.as_secs()).ok().filter(|_| elapsed > STEP_MAX);
        self.stepped = Some(whole.map_or(at, |steps| stepped.after(STEP * steps)));
        if watch.sheds() {
            self.severity.step(&watch.law, utilization, elapsed);
        }
    }
}

/// How often the slow law takes a step.
const STEP: Duration = Duration::from_secs(1);
