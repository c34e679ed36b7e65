//! An estimate of the Redis clock, for calendar windows, whose edges hosts compute.

use crate::clock::{Micros, Now, Timestamp};

/// The last reading of the Redis clock, and the local time of its reply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedisClock(Option<(Timestamp, u64)>);

impl RedisClock {
    /// Records a reading, in microseconds of Unix time, from a reply that arrives now.
    pub(super) fn heard(&mut self, now_us: u64, now: Timestamp) {
        self.0 = Some((now, now_us));
    }

    /// The Redis time, late by the latency of a reply; before the first reply, the time of the local clock.
    pub(super) fn unix_us(&self, now: Now) -> u64 {
        match self.0 {
            Some((at, us)) => us.saturating_add(Micros::from(now.at.since(at)).0),
            None => now.at.as_nanos().saturating_add_signed(now.utc_offset_nanos) / 1_000,
        }
    }
}
