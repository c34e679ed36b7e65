//! Measures the utilization of the slots over the last seconds: a mean over time, from readings of two running sums. It
//! uses no momentary samples: one such sample in eight seconds makes the controller oscillate.

use std::time::Duration;

use arrayvec::ArrayVec;

use crate::clock::Timestamp;

/// Readings of two growing sums: the busy time of the slots, and their total time.
#[derive(Clone, Debug, Default)]
pub struct UtilizationWindow {
    /// The oldest reading first; times rise.
    readings: ArrayVec<SumReading, READINGS>,
}

#[derive(Clone, Copy, Debug)]
struct SumReading {
    at: Timestamp,
    busy_nanos: u128,
    slot_nanos: u128,
}

impl UtilizationWindow {
    /// Adds a reading of both sums, in nanoseconds of one slot. A reading that is not later than the last is dropped.
    /// The last one is replaced while it is less than [`READING_DISTANCE_MIN`] after the one before it: 8.25 s of readings are
    /// always kept.
    pub fn push(&mut self, at: Timestamp, busy_nanos: u128, slot_nanos: u128) {
        let mut back = self.readings.iter().rev().map(|reading| reading.at);
        let (last, before) = (back.next(), back.next());
        if last.is_some_and(|last| at <= last) {
            return;
        }
        if last.zip(before).is_some_and(|(last, before)| last.since(before) < READING_DISTANCE_MIN) {
            self.readings.pop();
        } else if self.readings.is_full() {
            self.readings.remove(0);
        }
        self.readings.push(SumReading { at, busy_nanos, slot_nanos });
    }

    /// Busy slot-time ÷ slot-time over the `span` before the latest reading, or over all readings if they span less;
    /// `None` while there is no slot-time. Between two readings the sums are interpolated linearly.
    ///
    /// Exceeds one if the sums do: a caller that counts more busy slots than exist is not corrected here.
    pub fn mean_over(&self, span: Duration) -> Option<f64> {
        let mut readings = self.readings.iter().rev().copied();
        let latest = readings.next()?;
        let (mut next, mut earliest, mut share) = (latest, latest, 0.0);
        for reading in readings {
            earliest = reading;
            let known = latest.at.since(next.at);
            let between = next.at.since(earliest.at);
            if known + between >= span {
                // The fraction of the time between these two readings that lies in the span; their times differ.
                share = span.saturating_sub(known).as_secs_f64() / between.as_secs_f64();
                break;
            }
            next = earliest;
        }
        let sum = |of: fn(SumReading) -> u128| {
            to_f64(of(latest).saturating_sub(of(next)))
                + share * to_f64(of(next).saturating_sub(of(earliest)))
        };
        let slots = sum(|reading| reading.slot_nanos);
        (slots > 0.0).then(|| sum(|reading| reading.busy_nanos) / slots)
    }
}

/// Above 2⁵³ the last digits are lost; that is months in nanoseconds.
#[allow(clippy::cast_precision_loss, reason = "a share is wanted, not the sum")]
fn to_f64(nanos: u128) -> f64 {
    nanos as f64
}

/// The number of readings. With [`READING_DISTANCE_MIN`]: (44 − 1) × 200 ms = 8.6 s, the 8 s of the longest span and a tick more.
const READINGS: usize = 44;

/// The least distance of two readings. Ticks come every 250 ms, and may come early.
pub const READING_DISTANCE_MIN: Duration = Duration::from_millis(200);
