//! Runs the engine's ticks in virtual time, before later events; skips ticks without effect.

use std::time::Duration;

use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, TICK_MILLIS};

/// Ticks at a fixed interval, from the first event on.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    next: Option<Timestamp>,
}

impl Ticks {
    /// Runs all ticks up to and including `at`.
    pub(super) fn run(&mut self, engine: &Engine, at: Timestamp) {
        let mut next = *self.next.get_or_insert(at);
        let mut run: u32 = 0;
        while next <= at {
            engine.tick(Now { at: next, utc_offset_nanos: 0 });
            let tick = next;
            next = tick.after(TICK);
            if next == tick {
                // The end of representable time.
                break;
            }
            run = run.wrapping_add(1);
            let left = at.since(next);
            if left <= GAP_MIN {
                continue;
            }
            if engine.is_at_rest() {
                next = after(next, ticks_in(left.saturating_sub(TAIL)));
            } else if run.is_multiple_of(SWEPT_EVERY) {
                // An expired signal keeps a pool from being calm until it is swept.
                engine.sweep(Now { at: next, utc_offset_nanos: 0 });
            }
        }
        self.next = Some(next);
    }

    /// Skips all ticks up to `at`, for rules without pools.
    pub(super) fn pass(&mut self, at: Timestamp) {
        let next = *self.next.get_or_insert(at);
        if next <= at {
            self.next = Some(after(next, ticks_in(at.since(next)).saturating_add(1)));
        }
    }
}

fn ticks_in(span: Duration) -> u64 {
    u64::try_from(span.as_millis() / u128::from(TICK_MILLIS)).unwrap_or(u64::MAX)
}

fn after(from: Timestamp, ticks: u64) -> Timestamp {
    from.after(Duration::from_millis(ticks.saturating_mul(TICK_MILLIS)))
}

const TICK: Duration = Duration::from_millis(TICK_MILLIS);

/// The end of a gap that is always run: longer than a pool remembers, so that samples have exact times.
const TAIL: Duration = Duration::from_secs(12);

/// Shorter gaps are run in full.
const GAP_MIN: Duration = Duration::from_secs(16);

/// Ticks between sweeps: a sweep takes as long as this many ticks, and a signal expires after 3 s.
const SWEPT_EVERY: u32 = 64;
