//! The engine's own ticks in virtual time: each is run at its moment, before what comes later. Nothing sleeps, and where
//! nothing would come of them they are passed over.

use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, TICK_MILLIS};

/// Ticks, a fixed time apart from the first event on.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    next: Option<Timestamp>,
}

impl Ticks {
    /// Runs all ticks up to a moment, that moment's own included.
    pub(super) fn run(&mut self, engine: &Engine, at: Timestamp) {
        let mut next = *self.next.get_or_insert(at);
        let mut run: u32 = 0;
        while next <= at {
            engine.tick(Now { at: next, utc: 0 });
            let tick = next;
            next = tick.after(TICK);
            if next == tick {
                // The far end of time: there is no moment after it.
                break;
            }
            run = run.wrapping_add(1);
            let left = at.since(next);
            if left <= GAP_MIN {
                continue;
            }
            if engine.is_calm() {
                next = after(next, ticks_in(left.saturating_sub(TAIL)));
            } else if run.is_multiple_of(SWEPT_EVERY) {
                // A reading that is too old is none, and keeps a pool from its rest until it is swept away.
                engine.sweep(Now { at: next, utc: 0 });
            }
        }
        self.next = Some(next);
    }

    /// Passes over all ticks up to a moment: there is no pool that they would look at.
    pub(super) fn pass(&mut self, at: Timestamp) {
        let next = *self.next.get_or_insert(at);
        if next <= at {
            self.next = Some(after(next, ticks_in(at.since(next)).saturating_add(1)));
        }
    }
}

/// How many whole ticks there are in a span.
fn ticks_in(span: Duration) -> u64 {
    u64::try_from(span.as_millis() / u128::from(TICK_MILLIS)).unwrap_or(u64::MAX)
}

/// So many ticks later.
fn after(from: Timestamp, ticks: u64) -> Timestamp {
    from.after(Duration::from_millis(ticks.saturating_mul(TICK_MILLIS)))
}

const TICK: Duration = Duration::from_millis(TICK_MILLIS);

/// What is run of a gap in any case: more than a pool remembers, so that every reading that it has at the end of the gap
/// was taken at its own moment, to the last bit.
const TAIL: Duration = Duration::from_secs(12);

/// A gap that it is worth to look at.
const GAP_MIN: Duration = Duration::from_secs(16);

/// A sweep takes as long as many ticks; a reading is too old after three seconds.
const SWEPT_EVERY: u32 = 64;
