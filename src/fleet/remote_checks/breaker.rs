//! The circuit breaker of remote checks: pauses them after too many late replies in a row.

use super::PendingChecks;
use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaker {
    /// Checks are made; `misses` in a row had no reply in time.
    Closed { misses: u32 },
    /// No checks until `probe`, then one.
    Open { probe: Timestamp, after: Duration },
    /// The probe is in flight.
    Probing { after: Duration },
}

impl PendingChecks {
    pub(super) fn may_start(&mut self, now: Timestamp) -> bool {
        if !self.status.is_redis_reachable() {
            return false;
        }
        match self.breaker {
            Breaker::Closed { .. } => true,
            Breaker::Open { probe, after } if probe <= now => {
                self.breaker = Breaker::Probing { after };
                // Only the probe asks Redis; other requests use the local decision meanwhile.
                self.status.set_answers_in_time(false);
                true
            }
            Breaker::Open { .. } | Breaker::Probing { .. } => false,
        }
    }

    /// Counts a late reply; after too many, opens the breaker and ends all checks.
    pub(super) fn missed(&mut self, now: Timestamp) {
        let after = match self.breaker {
            Breaker::Closed { misses } if misses + 1 < MISSES_MAX => {
                self.breaker = Breaker::Closed { misses: misses + 1 };
                return;
            }
            Breaker::Closed { .. } => PAUSE_MIN,
            Breaker::Probing { after } => (after * 2).min(PAUSE_MAX),
            Breaker::Open { .. } => return,
        };
        self.counts.stopped += 1;
        let probe = now.after(after / 2 + self.rng.up_to(after));
        self.breaker = Breaker::Open { probe, after };
        self.status.set_answers_in_time(false);
        self.dismiss();
    }

    pub(super) fn answered_in_time(&mut self) {
        self.breaker = Breaker::Closed { misses: 0 };
        self.status.set_answers_in_time(self.status.is_redis_reachable());
    }

    /// Ends the pause if a command of the sync was answered in time for a request.
    pub fn record_reply_after(&mut self, took: Duration, now: Timestamp) {
        if let Breaker::Open { probe, .. } = &mut self.breaker
            && took <= IN_TIME
        {
            *probe = now.min(*probe);
        }
    }

    /// Lets the next request probe once the pause is over.
    pub(super) fn offer_probe(&mut self, now: Timestamp) {
        if let Breaker::Open { probe, .. } = self.breaker
            && probe <= now
        {
            self.status.set_answers_in_time(true);
        }
    }
}

/// Late replies in a row that open the breaker.
const MISSES_MAX: u32 = 5;

const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The default of `wait`.
const IN_TIME: Duration = Duration::from_millis(5);
