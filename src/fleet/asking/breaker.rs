//! When calls are made: not for a while after too many came to nothing in time.

use super::Asking;
use crate::clock::Timestamp;
use std::time::Duration;

/// Whether calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaker {
    /// They are; so many in a row were not answered in time.
    Closed { misses: u32 },
    /// None is until then, when one is.
    Open { probe: Timestamp, after: Duration },
    /// One is on its way.
    Probing { after: Duration },
}

impl Asking {
    pub(super) fn may_call(&mut self, now: Timestamp) -> bool {
        if !self.standing.is_linked() {
            return false;
        }
        match self.breaker {
            Breaker::Closed { .. } => true,
            Breaker::Open { probe, after } if probe <= now => {
                self.breaker = Breaker::Probing { after };
                // It alone: whoever comes meanwhile goes by what holds without Redis.
                self.standing.set_answering(false);
                true
            }
            Breaker::Open { .. } | Breaker::Probing { .. } => false,
        }
    }

    /// An answer did not come in time. After too many of them nobody waits for any.
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
        self.asked.stopped += 1;
        let probe = now.after(after / 2 + self.dice.up_to(after));
        self.breaker = Breaker::Open { probe, after };
        self.standing.set_answering(false);
        self.dismiss();
    }

    pub(super) fn heard_in_time(&mut self) {
        self.breaker = Breaker::Closed { misses: 0 };
        self.standing.set_answering(self.standing.is_linked());
    }

    /// After a pause the next request may ask, to try.
    pub(super) fn offer_probe(&mut self, now: Timestamp) {
        if let Breaker::Open { probe, .. } = self.breaker
            && probe <= now
        {
            self.standing.set_answering(true);
        }
    }
}

/// So many in a row that are not answered in time, and nobody is called for a while.
const MISSES_MAX: u32 = 5;

const PAUSE_MIN: Duration = Duration::from_millis(500);

const PAUSE_MAX: Duration = Duration::from_secs(5);
