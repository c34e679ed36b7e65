//! A rate as it is configured (`100/s`), and the scale of ticks on which it is exact.

use std::fmt;
use std::ops::RangeInclusive;

use super::fixed_window::WindowPeriod;

/// `count` units every `period_nanos` nanoseconds; both are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    period_nanos: u64,
}

impl Rate {
    /// Makes a rate of `count` units every `period_nanos` nanoseconds.
    ///
    /// # Errors A count or a period of zero, a period above [`PERIOD_NANOS_MAX`], a rate that cannot be kept to within
    /// one part in 100 000.
    pub fn new(count: u32, period_nanos: u64) -> Result<Rate, LimitError> {
        if count == 0 {
            return Err(LimitError::Zero);
        }
        if period_nanos == 0 || period_nanos > PERIOD_NANOS_MAX {
            return Err(LimitError::Period);
        }
        let rate = Rate { count, period_nanos };
        if rate.fits_scale(TickScale::for_rate(rate)) { Ok(rate) } else { Err(LimitError::TooFast) }
    }

    pub const fn count(self) -> u32 {
        self.count
    }

    pub const fn period_nanos(self) -> u64 {
        self.period_nanos
    }

    /// Ticks between two units on a scale, rounded up: a rate that does not divide is slightly slow, never fast.
    pub(super) fn interval_ticks(self, scale: TickScale) -> u64 {
        (self.period_nanos * u64::from(scale.ticks_per_nano())).div_ceil(u64::from(self.count))
    }

    /// The rounding on a scale, as the n of one part in n by which the rate is slow; `None` when it is exact.
    pub fn rounding_parts_on(self, scale: TickScale) -> Option<u64> {
        let (late, exact) = self.rounding_ticks(scale);
        let parts = exact.checked_div(late)?;
        Some(u64::try_from(parts).unwrap_or(u64::MAX))
    }

    /// Whether a scale keeps the rate to within one part in 100 000.
    pub(super) fn fits_scale(self, scale: TickScale) -> bool {
        let (late, exact) = self.rounding_ticks(scale);
        late * ROUNDING_PARTS <= exact
    }

    /// The ticks by which rounding lengthens a period on a scale, and the exact period in ticks.
    fn rounding_ticks(self, scale: TickScale) -> (u128, u128) {
        let kept = u128::from(self.interval_ticks(scale)) * u128::from(self.count);
        let exact = u128::from(self.period_nanos) * u128::from(scale.ticks_per_nano());
        (kept - exact, exact)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, WindowPeriod::Nanos(self.period_nanos))
    }
}

/// As in a rate, in the largest unit that divides the period: `s`, `15min`, `month`.
impl fmt::Display for WindowPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match *self {
            WindowPeriod::Months(months) => (u64::from(months), "month"),
            WindowPeriod::Nanos(nanos) => {
                let unit = UNITS.into_iter().find(|(unit_nanos, _)| nanos.is_multiple_of(*unit_nanos));
                unit.map_or((nanos, "ns"), |(unit_nanos, unit)| (nanos / unit_nanos, unit))
            }
        };
        if number == 1 { f.write_str(unit) } else { write!(f, "{number}{unit}") }
    }
}

/// The number of ticks in a nanosecond, 1 to 128.
///
/// A rate of n units every p nanoseconds, in lowest terms, has an interval of p/n nanoseconds: a whole number of ticks
/// of 1/n nanosecond. For n above 128 the interval is rounded up to 1/128 nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TickScale(u8);

impl TickScale {
    /// One tick per nanosecond.
    pub const NANOS: TickScale = TickScale(1);

    /// 128 ticks per nanosecond.
    pub const FINEST: TickScale = TickScale(TICKS_PER_NANO_MAX);

    /// The coarsest scale on which the rate is exact, or else the finest.
    pub fn for_rate(rate: Rate) -> TickScale {
        let lowest =
            u64::from(rate.count) / greatest_common_divisor(u64::from(rate.count), rate.period_nanos);
        TickScale(u8::try_from(lowest).map_or(TICKS_PER_NANO_MAX, |ticks| ticks.min(TICKS_PER_NANO_MAX)))
    }

    /// The coarsest scale on which every rate that is exact on one of the two is exact; `None` above 128 ticks per
    /// nanosecond.
    pub fn lcm(self, other: TickScale) -> Option<TickScale> {
        let (a, b) = (u64::from(self.0), u64::from(other.0));
        TickScale::from_ticks_per_nano(u8::try_from(a / greatest_common_divisor(a, b) * b).ok()?)
    }

    /// Converts ticks of another scale to ticks of this one, rounded up, saturated at `u64::MAX`.
    pub(super) fn ticks_up(self, ticks: u64, from: TickScale) -> u64 {
        let exact = u128::from(ticks) * u128::from(self.0);
        u64::try_from(exact.div_ceil(u128::from(from.0))).unwrap_or(u64::MAX)
    }

    /// Ticks in a nanosecond, 1 to 128.
    pub const fn ticks_per_nano(self) -> u8 {
        self.0
    }

    /// The scale with this number of ticks, if it is 1 to 128.
    pub const fn from_ticks_per_nano(ticks: u8) -> Option<TickScale> {
        if ticks >= 1 && ticks <= TICKS_PER_NANO_MAX { Some(TickScale(ticks)) } else { None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum LimitError {
    #[error("a rate of 0 refuses everything")]
    Zero,
    #[error("a period is at least a nanosecond and at most 366 days")]
    Period,
    #[error("a rate this fast cannot be kept to within one part in 100000")]
    TooFast,
    #[error(
        "a burst this large takes too long to fill: at most 73 years, 208 days at a rate that is not exact"
    )]
    BurstTooLarge,
    #[error("a window is at least a millisecond and at most 366 days")]
    Window,
    #[error(
        "a sliding log counts to at most 10000, since it keeps every request; a sliding window counts further"
    )]
    LogTooLarge,
    #[error("a sliding window has 1 to 60 buckets")]
    Buckets,
    #[error(
        "a queue this long takes too long to drain: at most 73 years, 208 days at a rate that is not exact"
    )]
    QueueTooLong,
    #[error(
        "a window of more than a day that begins at midnight is a whole number of days; one that opens with the first request (`align: first`) may have any length"
    )]
    PartDays,
}

/// The greatest common divisor; the other number where one is zero.
pub(crate) fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

const TICKS_PER_NANO_MAX: u8 = 128;

/// 366 days: with 128 ticks per nanosecond a period still fits 63 bits.
pub(crate) const PERIOD_NANOS_MAX: u64 = 366 * 86_400 * 1_000_000_000;

/// The range of window lengths. A window below a millisecond would be shorter than a round trip to the daemon.
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
