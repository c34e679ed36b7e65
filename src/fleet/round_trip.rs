//! The round trip to Redis, smoothed, and the timeout that follows from it: for the sync of budgets, and for each
//! connection.

use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) took: Duration,
    /// Timeouts in a row; each doubles the next timeout.
    patience: u32,
    /// When the last reply of any kind came.
    heard: Timestamp,
}

impl Default for RoundTrip {
    fn default() -> RoundTrip {
        RoundTrip { took: FIRST, patience: 0, heard: Timestamp::ORIGIN }
    }
}

impl RoundTrip {
    /// Returns the timeout: four round trips, at least 250 ms and at most 2 s. Repeated timeouts double it,
    /// as a round trip longer than the timeout cannot be measured.
    pub(super) fn timeout(&self) -> Duration {
        ((self.took * 4).max(TIMEOUT_MIN) * (1 << self.patience)).min(TIMEOUT_MAX)
    }

    pub(super) fn record_reply(&mut self, took: Duration, now: Timestamp) {
        self.heard = now;
        self.patience = 0;
        let took = took.min(TIMEOUT_MAX);
        // Longer round trips weigh more: too short a timeout would learn nothing.
        let old = if took > self.took { 1 } else { 7 };
        self.took = (self.took * old + took) / (old + 1);
    }

    pub(super) fn missed(&mut self, now: Timestamp) {
        if self.heard.after(self.timeout()) <= now {
            // No other reply came either, so this one was not merely lost.
            self.patience = (self.patience + 1).min(PATIENCE_MAX);
        }
    }
}

/// The estimate before the first reply.
const FIRST: Duration = Duration::from_millis(1);

const TIMEOUT_MIN: Duration = Duration::from_millis(250);

pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// Doublings from the least timeout to the longest.
const PATIENCE_MAX: u32 = 3;
