//! A rate as it is written (`100/s`) and the scale of ticks on which it is exact.

use std::fmt;
use std::ops::RangeInclusive;

/// `count` units every `period_nanos` nanoseconds. Both are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    period_nanos: u64,
}

impl Rate {
    /// `count` units every `period_nanos` nanoseconds.
    ///
    /// # Errors
    /// A count or a period of zero, a period above [`PERIOD_NANOS_MAX`], a rate that cannot be kept to within
    /// one part in 100 000.
    pub fn new(count: u32, period_nanos: u64) -> Result<Rate, RateError> {
        if count == 0 {
            return Err(RateError::Zero);
        }
        if period_nanos == 0 || period_nanos > PERIOD_NANOS_MAX {
            return Err(RateError::Period);
        }
        let rate = Rate { count, period_nanos };
        if rate.is_kept_on(Scale::of(rate)) { Ok(rate) } else { Err(RateError::TooFast) }
    }

    /// Units given each period.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The period in nanoseconds.
    #[must_use]
    pub const fn period_nanos(self) -> u64 {
        self.period_nanos
    }

    /// Ticks between two units on a scale, rounded up: a rate that does not divide is kept a little slow, never fast.
    pub(super) fn interval_ticks(self, scale: Scale) -> u64 {
        (self.period_nanos * u64::from(scale.ticks_per_nano())).div_ceil(u64::from(self.count))
    }

    /// Whether the rate is kept without rounding.
    #[must_use]
    pub fn is_exact(self) -> bool {
        (self.period_nanos * u64::from(Scale::of(self).ticks_per_nano()))
            .is_multiple_of(u64::from(self.count))
    }

    /// By one part in how many the rate is kept slow on its own scale; none when it is exact.
    #[must_use]
    pub fn rounding(self) -> Option<u64> {
        self.rounding_on(Scale::of(self))
    }

    /// By one part in how many the rate is kept slow on a scale; none when it is exact there.
    #[must_use]
    pub fn rounding_on(self, scale: Scale) -> Option<u64> {
        let (late, exact) = self.lateness(scale);
        let parts = exact.checked_div(late)?;
        Some(u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// Whether the rate is kept on a scale to within one part in 100 000.
    pub(super) fn is_kept_on(self, scale: Scale) -> bool {
        let (late, exact) = self.lateness(scale);
        late * ROUNDING_PARTS <= exact
    }

    /// By how much rounding lengthens a period on a scale, and how long it is, both in ticks.
    fn lateness(self, scale: Scale) -> (u128, u128) {
        let kept = u128::from(self.interval_ticks(scale)) * u128::from(self.count);
        let exact = u128::from(self.period_nanos) * u128::from(scale.ticks_per_nano());
        (kept - exact, exact)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate { count, period_nanos } = *self;
        Every { count, period_nanos }.fmt(f)
    }
}

/// So many units in so long, as it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Every {
    pub(super) count: u32,
    pub(super) period_nanos: u64,
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit_nanos, unit) in UNITS {
            if self.period_nanos == unit_nanos {
                return write!(f, "{}/{unit}", self.count);
            }
        }
        for (unit_nanos, unit) in UNITS {
            if self.period_nanos.is_multiple_of(unit_nanos) {
                return write!(f, "{}/{}{unit}", self.count, self.period_nanos / unit_nanos);
            }
        }
        write!(f, "{}/{}ns", self.count, self.period_nanos)
    }
}

/// How many ticks make a nanosecond, 1 to 128.
///
/// A rate of n units every p nanoseconds, in lowest terms, has its units p/n nanoseconds apart: whole in ticks of
/// 1/n nanosecond. Above 128 the interval is rounded up to 1/128 nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scale(u8);

impl Scale {
    /// One tick a nanosecond.
    pub const NANOS: Scale = Scale(1);

    /// 128 ticks a nanosecond.
    pub const FINEST: Scale = Scale(TICKS_PER_NANO_MAX);

    /// The coarsest scale on which the rate is exact, else the finest there is.
    #[must_use]
    pub fn of(rate: Rate) -> Scale {
        let lowest = u64::from(rate.count) / highest_common_factor(u64::from(rate.count), rate.period_nanos);
        Scale(u8::try_from(lowest).map_or(TICKS_PER_NANO_MAX, |ticks| ticks.min(TICKS_PER_NANO_MAX)))
    }

    /// The coarsest scale on which whatever is exact on one of the two is exact; none when that takes more than 128
    /// ticks to a nanosecond.
    #[must_use]
    pub fn lcm(self, other: Scale) -> Option<Scale> {
        let (a, b) = (u64::from(self.0), u64::from(other.0));
        Scale::from_ticks_per_nano(u8::try_from(a / highest_common_factor(a, b) * b).ok()?)
    }

    /// A span in ticks of another scale, rounded up to ticks of this one; the end of the numbers is a wall.
    pub(super) fn ticks_up(self, ticks: u64, from: Scale) -> u64 {
        let exact = u128::from(ticks) * u128::from(self.0);
        u64::try_from(exact.div_ceil(u128::from(from.0))).unwrap_or(u64::MAX)
    }

    /// Ticks in a nanosecond, 1 to 128.
    #[must_use]
    pub const fn ticks_per_nano(self) -> u8 {
        self.0
    }

    /// The scale of so many ticks, if there is one.
    #[must_use]
    pub const fn from_ticks_per_nano(ticks: u8) -> Option<Scale> {
        if ticks >= 1 && ticks <= TICKS_PER_NANO_MAX { Some(Scale(ticks)) } else { None }
    }
}

/// Why a rate cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// A count of zero would refuse everything.
    #[error("a rate of 0 refuses everything")]
    Zero,
    /// The period is zero or longer than 366 days.
    #[error("a period is at least a nanosecond and at most 366 days")]
    Period,
    /// Units would come closer together than a tick can tell apart.
    #[error("a rate this fast cannot be kept to within one part in 100000")]
    TooFast,
    /// burst × interval does not fit.
    #[error(
        "a burst this large takes too long to fill: at most 73 years, 208 days at a rate that is not exact"
    )]
    BurstTooLarge,
    /// The window is shorter than a millisecond or longer than 366 days.
    #[error("a window is at least a millisecond and at most 366 days")]
    Window,
    /// The log would keep more than [`COUNT_MAX`](super::sliding_log::COUNT_MAX) requests of one key.
    #[error(
        "a sliding log counts to at most 10000, for it keeps every request; a sliding window counts further"
    )]
    LogTooLarge,
    /// No bucket at all, or more than 60.
    #[error("a sliding window has 1 to 60 buckets")]
    Buckets,
    /// (queue + 1) × interval does not fit.
    #[error(
        "a queue this long takes too long to drain: at most 73 years, 208 days at a rate that is not exact"
    )]
    QueueTooLong,
    /// A window longer than a day could not begin and end at midnight.
    #[error(
        "a window of more than a day that begins at midnight is a whole number of days; one that opens with the first request (`align: first`) may have any length"
    )]
    PartDays,
}

/// The largest number that divides both; the other one where one is zero.
pub(crate) fn highest_common_factor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

const TICKS_PER_NANO_MAX: u8 = 128;

/// 366 days: with 128 ticks to a nanosecond a period still fits 63 bits.
pub(crate) const PERIOD_NANOS_MAX: u64 = 366 * 86_400 * 1_000_000_000;

/// How long a window may be. Below a millisecond it would be shorter than the way to the daemon and back.
pub(super) const WINDOW_NANOS: RangeInclusive<u64> = 1_000_000..=PERIOD_NANOS_MAX;

/// The rounding of a rate is at most one part in this many.
const ROUNDING_PARTS: u128 = 100_000;

const UNITS: [(u64, &str); 6] = [
    (7 * 86_400 * 1_000_000_000, "week"),
    (86_400 * 1_000_000_000, "day"),
    (3_600 * 1_000_000_000, "h"),
    (60 * 1_000_000_000, "min"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
];
