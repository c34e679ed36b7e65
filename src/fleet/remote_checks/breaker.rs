//! The circuit breaker of remote checks: pauses them after too many late replies in a row.

use super::PendingChecks;
use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaker {
    /// Checks are made. `misses` one after the other had no reply in time, the last at `last_miss`, and took `waited` together.
    Closed { misses: u32, waited: Duration, last_miss: Timestamp },
    /// No checks until `probe`, then one.
    Open { probe: Timestamp, after: Duration },
    /// The probe is in flight.
    Probing { after: Duration },
}

impl Breaker {
    pub(super) const CLOSED: Breaker =
        Breaker::Closed { misses: 0, waited: Duration::ZERO, last_miss: Timestamp::ORIGIN };
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

    /// Counts the late reply of a check that began at `begun`; after too many, opens the breaker and ends all checks. Checks
    /// that waited at the same time say the same about Redis, so they count once.
    pub(super) fn missed(&mut self, begun: Timestamp, now: Timestamp) {
        let after = match self.breaker {
            Breaker::Closed { last_miss, .. } if begun < last_miss => return,
            Breaker::Closed { misses, waited, .. } => {
                let (misses, waited) = (misses + 1, waited + now.since(begun));
                if misses < MISSES_MAX && waited < WAITED_MAX {
                    self.breaker = Breaker::Closed { misses, waited, last_miss: now };
                    return;
                }
                PAUSE_MIN
            }
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
        self.breaker = Breaker::CLOSED;
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

/// Late replies one after the other that open the breaker.
const MISSES_MAX: u32 = 5;

/// The time that late replies one after the other may take: where `wait` is long, fewer of them open the breaker.
const WAITED_MAX: Duration = Duration::from_millis(100);

const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The default of `wait`.
const IN_TIME: Duration = Duration::from_millis(5);
