//! What the clock of Redis shows, as far as it was heard: for the windows of calendars, whose edges hosts tell Redis.

use crate::clock::{Now, Timestamp};

/// The clock of Redis.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedisClock(Option<(Timestamp, u64)>);

impl RedisClock {
    /// It has shown this, in microseconds of Unix time, in an answer that comes now. The latest is the best.
    pub(super) fn heard(&mut self, now_us: u64, now: Timestamp) {
        self.0 = Some((now, now_us));
    }

    /// What it shows, behind by as long as an answer takes; before any was heard, what this host's clock does.
    pub(super) fn unix_us(&self, now: Now) -> u64 {
        match self.0 {
            Some((at, us)) => us.saturating_add(u64::try_from(now.at.since(at).as_micros()).unwrap_or(0)),
            None => now.at.as_nanos().saturating_add_signed(now.utc) / 1_000,
        }
    }
}
