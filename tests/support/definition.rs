//! The algorithms as the design defines them: lists of charges in whole numbers, not optimized.

use tidegate::clock::{Now, Timestamp};

/// How an algorithm counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Definition {
    /// Parts of a nanosecond on which the rate is exact, and parts between two units.
    Bucket {
        parts: i128,
        interval: i128,
    },
    /// Windows of Unix time, or by the boot-time clock from the first unit on, to 256 ns.
    FixedWindow {
        nanos: u64,
        first: bool,
    },
    SlidingLog {
        nanos: u64,
    },
    SlidingWindow {
        nanos: u64,
        buckets: u8,
    },
}

/// The charges of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charged {
    /// The time at which a bucket is full, in parts.
    full_at: i128,
    /// Times and units of charges to a window, in order.
    units: Vec<(Now, u64)>,
}

fn narrow(number: i128) -> u64 {
    u64::try_from(number).unwrap()
}

/// Nanoseconds of Unix time.
fn unix(at: Timestamp, now: Now) -> i128 {
    i128::from(at.as_nanos()) + i128::from(now.utc_offset_nanos)
}

impl Definition {
    pub(crate) fn is_bucket(self) -> bool {
        matches!(self, Definition::Bucket { .. })
    }

    /// The time until a bucket is full, in parts.
    pub(crate) fn ahead(self, charged: &Charged, now: Now) -> i128 {
        let Definition::Bucket { parts, .. } = self else { return 0 };
        (charged.full_at - i128::from(now.at.as_nanos()) * parts).max(0)
    }

    /// The remaining units of this limit.
    pub(crate) fn remaining(self, charged: &Charged, now: Now, limit: u64) -> u64 {
        match self {
            Definition::Bucket { interval, .. } => {
                narrow((interval * i128::from(limit) - self.ahead(charged, now)).max(0) / interval)
            }
            _ => limit.saturating_sub(self.used(charged, now)),
        }
    }

    /// The units that a window counts.
    pub(crate) fn used(self, charged: &Charged, now: Now) -> u64 {
        match self {
            Definition::Bucket { .. } => unreachable!("a bucket has no window"),
            Definition::FixedWindow { nanos, first } => charged.in_fixed_window(now, nanos, first),
            Definition::SlidingLog { nanos } => {
                let moment = charged.moment(now);
                let counts = |at: Timestamp| moment.as_nanos() - at.as_nanos() < nanos;
                charged.units.iter().filter(|(then, _)| counts(then.at)).map(|(_, units)| units).sum()
            }
            Definition::SlidingWindow { nanos, buckets } => charged.estimate(now, nanos, buckets),
        }
    }

    /// Charges units from `start` parts after now, or from when a bucket allows them.
    pub(crate) fn charge(self, charged: &mut Charged, now: Now, units: u64, start: i128) {
        match self {
            Definition::Bucket { parts, interval } => {
                let start = self.ahead(charged, now).max(start);
                charged.full_at =
                    i128::from(now.at.as_nanos()) * parts + start + i128::from(units) * interval;
            }
            Definition::SlidingLog { .. } => {
                charged.units.push((Now { at: charged.moment(now), ..now }, units));
            }
            _ => charged.units.push((now, units)),
        }
    }

    /// Charges after the fact, up to `most` used units.
    pub(crate) fn owe(self, charged: &mut Charged, now: Now, amount: u64, most: u64) {
        if let Definition::Bucket { parts, interval } = self {
            let ahead = self.ahead(charged, now);
            let owed = ahead + i128::from(amount) * interval;
            let owed = owed.min(i128::from(most) * interval).max(ahead);
            charged.full_at = i128::from(now.at.as_nanos()) * parts + owed;
            return;
        }
        let amount = amount.min(most.saturating_sub(self.used(charged, now)));
        if amount > 0 {
            self.charge(charged, now, amount, 0);
        }
    }

    /// Refunds the newest units.
    pub(crate) fn refund(self, charged: &mut Charged, now: Now, amount: u64) {
        if let Definition::Bucket { parts, interval } = self {
            let ahead = (self.ahead(charged, now) - i128::from(amount) * interval).max(0);
            charged.full_at = i128::from(now.at.as_nanos()) * parts + ahead;
            return;
        }
        if let Definition::SlidingLog { nanos } = self {
            // Expired units stay removed, even if the clock runs backwards afterwards.
            let moment = charged.moment(now).as_nanos();
            charged.units.retain(|(then, _)| moment - then.at.as_nanos() < nanos);
        }
        let mut amount = amount;
        for (_, units) in charged.units.iter_mut().rev() {
            let taken = amount.min(*units);
            *units -= taken;
            amount -= taken;
        }
        charged.units.retain(|(_, units)| *units > 0);
    }
}

impl Charged {
    /// Now, but not before the newest entry.
    fn moment(&self, now: Now) -> Timestamp {
        self.units.last().map_or(now.at, |(newest, _)| newest.at.max(now.at))
    }

    fn in_fixed_window(&self, now: Now, nanos: u64, first: bool) -> u64 {
        let nanos = i128::from(nanos);
        // Whether the window begun then is over, by the current wall clock.
        let is_over = |began: Timestamp, now: Now| {
            if first {
                return i128::from(now.at.as_nanos()) >= i128::from(began.as_nanos()) + nanos;
            }
            unix(now.at, now) >= (unix(began, now).div_euclid(nanos) + 1) * nanos
        };
        let (mut began, mut used) = (None, 0);
        for (then, units) in &self.units {
            if began.is_none_or(|began| is_over(began, *then)) {
                let at = then.at.as_nanos();
                let at = if first { at / 256 * 256 } else { at };
                (began, used) = (Some(Timestamp::from_nanos(at)), 0);
            }
            used += units;
        }
        if began.is_some_and(|began| !is_over(began, now)) { used } else { 0 }
    }

    /// The window's full buckets, and the share of the oldest that lies within it.
    fn estimate(&self, now: Now, nanos: u64, buckets: u8) -> u64 {
        let (window, buckets) = (i128::from(nanos), i128::from(buckets));
        // Unix time in 1/buckets of a nanosecond, not before the newest bucket, and the number of its bucket.
        // The current wall clock determines the newest bucket.
        let bucket_at = |began: Timestamp, newest: i128, now: Now| {
            let begin = (unix(began, now) * buckets).div_euclid(window);
            let moment = (unix(now.at, now) * buckets).max(begin * window);
            (moment, newest + moment.div_euclid(window) - begin)
        };
        let (mut began, mut newest, mut counts) = (None, 0, Vec::new());
        for (then, units) in &self.units {
            let bucket = began.map_or(newest, |began| bucket_at(began, newest, *then).1);
            if began.is_none() || bucket > newest {
                (began, newest) = (Some(then.at), bucket);
            }
            counts.push((newest, *units));
        }
        let Some(began) = began else { return 0 };
        let (moment, bucket) = bucket_at(began, newest, now);
        let sum = |counts_in: &dyn Fn(i128) -> bool| -> u64 {
            counts.iter().filter(|(index, _)| counts_in(*index)).map(|(_, units)| units).sum()
        };
        let oldest = i128::from(sum(&|index| index == bucket - buckets));
        let share = oldest * (window - moment.rem_euclid(window)) / window;
        sum(&|index| index > bucket - buckets) + narrow(share)
    }
}
