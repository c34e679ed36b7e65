//! The reply timeout: four times the round trip, smoothed as in TCP, and doubled after each timeout, so that
//! a server that became slow is not disconnected repeatedly.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTimeout {
    /// Eight times the smoothed round trip, µs, which avoids rounding losses.
    eightfold_us: Option<u64>,
    doublings: u32,
}

impl ReplyTimeout {
    /// Takes the time of a reply, µs.
    pub(super) fn came(&mut self, micros: u64) {
        let micros = micros.clamp(1, SAMPLE_US_MAX);
        self.doublings = 0;
        self.eightfold_us = Some(match self.eightfold_us {
            None => micros * 8,
            Some(eightfold) => eightfold - eightfold / 8 + micros,
        });
    }

    /// Doubles the timeout after a missing reply.
    pub(super) fn lapsed(&mut self) {
        self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
    }

    /// Starts anew from the first round trip of a connection, as its path may be another one; keeps the
    /// doublings.
    pub(super) fn begin(&mut self, micros: u64) {
        let doublings = self.doublings;
        self.eightfold_us = None;
        self.came(micros);
        self.doublings = doublings;
    }

    pub(super) fn round_trip_us(&self) -> Option<u64> {
        self.eightfold_us.map(|eightfold| eightfold / 8)
    }

    pub(super) fn timeout(&self) -> Duration {
        let fourfold = self.eightfold_us.unwrap_or_default() / 2;
        let once = Duration::from_micros(fourfold).clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        (once * (1 << self.doublings)).min(TIMEOUT_MAX)
    }
}

/// The scheduler or a save to disk may take this long.
const TIMEOUT_MIN: Duration = Duration::from_millis(250);

pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// Doublings from the shortest to the longest timeout.
const DOUBLINGS_MAX: u32 = 3;

/// Bounds a sample taken across a suspend of the machine.
const SAMPLE_US_MAX: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::{Duration, ReplyTimeout};

    #[test]
    fn four_round_trips_within_bounds() {
        let mut patience = ReplyTimeout::default();
        assert_eq!(patience.timeout(), Duration::from_millis(250), "nothing is known");
        patience.begin(100_000);
        assert_eq!(patience.timeout(), Duration::from_millis(400));
        for _ in 0..200 {
            patience.came(200_000);
        }
        let timeout = patience.timeout();
        assert!(
            timeout >= Duration::from_millis(799) && timeout <= Duration::from_millis(800),
            "{timeout:?}"
        );
        for _ in 0..200 {
            patience.came(300);
        }
        assert_eq!(patience.timeout(), Duration::from_millis(250));
        patience.came(u64::MAX);
        assert_eq!(patience.timeout(), Duration::from_secs(2));
    }

    #[test]
    fn who_was_not_answered_waits_longer_next_time_and_until_an_answer_comes() {
        let mut patience = ReplyTimeout::default();
        patience.begin(500);
        let waits: Vec<_> = (0..5)
            .map(|_| {
                patience.lapsed();
                patience.timeout().as_millis()
            })
            .collect();
        assert_eq!(waits, [500, 1000, 2000, 2000, 2000]);
        patience.begin(500);
        assert_eq!(patience.timeout().as_millis(), 2000, "a connection alone proves nothing");
        patience.came(500);
        assert_eq!(patience.timeout().as_millis(), 250);
    }
}
