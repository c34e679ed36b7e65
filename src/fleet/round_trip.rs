//! How long answers take, and from that how long to wait for one.

use crate::clock::Timestamp;
use std::time::Duration;

/// There and back, smoothed.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) took: Duration,
    /// How often in a row nothing came in time: each time the wait is doubled.
    patience: u32,
    /// When anything last came.
    heard: Timestamp,
}

impl Default for RoundTrip {
    fn default() -> RoundTrip {
        RoundTrip { took: FIRST, patience: 0, heard: Timestamp::ORIGIN }
    }
}

impl RoundTrip {
    /// How long to wait for an answer: four times as long as they take. Where none comes in time, nobody can tell how long
    /// they take until it is waited for longer.
    pub(super) fn timeout(&self) -> Duration {
        ((self.took * 4).max(TIMEOUT_MIN) * (1 << self.patience)).min(TIMEOUT_MAX)
    }

    /// An answer has come. It tells how long it took if it was asked for once only.
    pub(super) fn heard(&mut self, took: Option<Duration>, now: Timestamp) {
        self.heard = now;
        let Some(took) = took else { return };
        self.patience = 0;
        let took = took.min(TIMEOUT_MAX);
        // What takes longer is believed sooner: who does not wait long enough learns nothing.
        let old = if took > self.took { 1 } else { 7 };
        self.took = (self.took * old + took) / (old + 1);
    }

    /// An answer has not come in time.
    pub(super) fn missed(&mut self, now: Timestamp) {
        if self.heard.after(self.timeout()) <= now {
            // Nothing at all came meanwhile: that one was not just lost.
            self.patience = (self.patience + 1).min(PATIENCE_MAX);
        }
    }
}

/// Before the first answer.
const FIRST: Duration = Duration::from_millis(1);

const TIMEOUT_MIN: Duration = Duration::from_millis(250);

const TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// From the least wait to the longest.
const PATIENCE_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_take_longer_than_they_are_waited_for_are_waited_for_at_last() {
        let took = Duration::from_millis(500);
        let mut round_trip = RoundTrip::default();
        let mut now = Timestamp::ORIGIN;
        for _ in 0..6 {
            let wait = round_trip.timeout();
            if wait < took {
                now = now.after(wait);
                round_trip.missed(now);
                // It comes all the same, and nobody can tell whether to the first or the second asking.
                round_trip.heard(None, now.after(took - wait));
                now = now.after(Duration::from_secs(1));
            } else {
                now = now.after(took);
                round_trip.heard(Some(took), now);
            }
        }
        assert!(round_trip.timeout() >= took * 2, "{round_trip:?}");
    }

    #[test]
    fn one_that_is_lost_among_others_changes_nothing() {
        let mut round_trip = RoundTrip::default();
        let now = Timestamp::from_nanos(1_000_000_000);
        round_trip.heard(Some(FIRST), now);
        round_trip.missed(now.after(Duration::from_millis(100)));
        assert_eq!(round_trip.timeout(), TIMEOUT_MIN);
    }
}
