//! Calendar windows: finds the window that contains an instant, its end and its real length. Never reads a clock.
//!
//! A day begins at local midnight: at the first instant of the day where midnight is skipped, at the first of the two
//! where it occurs twice. Consecutive days therefore have no gap and no overlap, also when local clocks change.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};

/// The windows of a time zone that begin at midnight or are counted from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calendar {
    /// The zone of the midnights; `None` is UTC, computed by plain arithmetic.
    zone: Option<TimeZone>,
    step: CalendarStep,
    last_range: LastRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalendarStep {
    /// Nanoseconds, less than a day, counted from midnight; the last window of a day is cut at the next midnight.
    Within(u64),
    /// Days, counted from 1970-01-01; whole weeks are counted from Monday, 1970-01-05.
    Days(u32),
    /// Months, counted from January 1970.
    Months(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CalendarWindow {
    /// The end in nanoseconds of Unix time, saturated at `u64::MAX` (the year 2554).
    pub(super) end: u64,
    /// The real length: a day may have 23 hours, a month 28 days.
    pub(super) nanos: u64,
}

impl Calendar {
    /// Whether the days are UTC days, which all have the same length.
    pub(super) fn is_utc(&self) -> bool {
        self.zone.is_none()
    }

    pub(super) fn name(&self) -> String {
        let named = |zone: &TimeZone| zone.iana_name().map_or_else(|| format!("{zone:?}"), str::to_owned);
        self.zone.as_ref().map_or_else(|| "UTC".to_owned(), named)
    }

    /// Makes the windows of a time zone, or of UTC for `None`.
    pub(super) fn new(zone: Option<TimeZone>, step: CalendarStep) -> Calendar {
        Calendar { zone, step, last_range: LastRange::default() }
    }

    /// The length of every window and the start of one of them, in nanoseconds of Unix time, if all have the same
    /// length.
    pub(super) fn uniform_period(&self) -> Option<(u64, u64)> {
        match (&self.zone, self.step) {
            (None, CalendarStep::Within(nanos)) => DAY_NANOS.is_multiple_of(nanos).then_some((nanos, 0)),
            (None, CalendarStep::Days(days)) => {
                let origin = if days % 7 == 0 { FIRST_MONDAY.unsigned_abs() * DAY_NANOS } else { 0 };
                Some((u64::from(days) * DAY_NANOS, origin))
            }
            _ => None,
        }
    }

    /// The window that contains an instant of Unix time, in nanoseconds.
    pub(super) fn window_at(&self, unix_nanos: u64) -> CalendarWindow {
        // 64 bits of nanoseconds are 35 bits of seconds.
        let second = i64::try_from(unix_nanos / SECOND_NANOS).unwrap_or(i64::MAX);
        let range = self.day_range(second);
        let CalendarStep::Within(step) = self.step else {
            return CalendarWindow { end: nanos_between(0, range.to), nanos: range.nanos() };
        };
        let since = nanos_between(range.from, second).saturating_add(unix_nanos % SECOND_NANOS);
        let start = since - since % step;
        let end = range.nanos().min(start.saturating_add(step));
        // A window ends later than any instant in it, whatever the time zone data contain.
        let left = end.saturating_sub(since).max(1);
        CalendarWindow { end: unix_nanos.saturating_add(left), nanos: end.saturating_sub(start) }
    }

    /// The days that form the window, or the day that contains it.
    fn day_range(&self, second: i64) -> DayRange {
        if let Some(range) = self.last_range.get(second) {
            return range;
        }
        let (first, next) = self.days_around(self.day_of(second));
        let range = DayRange { from: self.midnight(first), to: self.midnight(next) };
        self.last_range.store(range);
        range
    }

    /// The first day of the window that contains a day, and the first day of the next window.
    fn days_around(&self, day: i64) -> (i64, i64) {
        match self.step {
            CalendarStep::Within(_) => (day, day + 1),
            CalendarStep::Days(days) => {
                let days = i64::from(days);
                let first = if days % 7 == 0 { FIRST_MONDAY } else { 0 };
                let first = day - (day - first).rem_euclid(days);
                (first, first + days)
            }
            CalendarStep::Months(months) => {
                let date = date_of(day);
                let months = i64::from(months);
                let since_1970 = (i64::from(date.year()) - 1970) * 12 + i64::from(date.month()) - 1;
                let first = since_1970 - since_1970.rem_euclid(months);
                (first_of_month(first), first_of_month(first + months))
            }
        }
    }

    /// The day that contains a second of Unix time.
    fn day_of(&self, second: i64) -> i64 {
        let Some(zone) = &self.zone else { return second.div_euclid(DAY_SECONDS) };
        let offset = Timestamp::from_second(second).map_or(0, |at| i64::from(zone.to_offset(at).seconds()));
        let day = (second + offset).div_euclid(DAY_SECONDS);
        // Where clocks go back over midnight, the offset yields the previous day again, although that day has ended.
        if self.midnight(day + 1) <= second { day + 1 } else { day }
    }

    /// The second of Unix time at which a day begins.
    fn midnight(&self, day: i64) -> i64 {
        let local = day * DAY_SECONDS;
        let Some(zone) = &self.zone else { return local };
        match zone.to_ambiguous_timestamp(date_of(day).at(0, 0, 0, 0)).offset() {
            AmbiguousOffset::Unambiguous { offset } => local - i64::from(offset.seconds()),
            AmbiguousOffset::Fold { before, .. } => local - i64::from(before.seconds()),
            AmbiguousOffset::Gap { before, after } => {
                // Midnight by the old offset may lie after the instant at which the clock was put forward.
                let earlier = Timestamp::from_second(local - i64::from(after.seconds())).ok();
                let change = earlier.and_then(|at| zone.following(at).next());
                change.map_or(local - i64::from(before.seconds()), |change| change.timestamp().as_second())
            }
        }
    }
}

/// Whole days from one midnight to another, in seconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DayRange {
    from: i64,
    to: i64,
}

impl DayRange {
    fn nanos(self) -> u64 {
        nanos_between(self.from, self.to)
    }
}

/// The range of days found by the last lookup. Nearly all keys of a rule are in the same window, so the time zone is
/// queried once per window instead of once per reply.
///
/// One atomic word, so that threads need no lock: the end, in seconds, above [`LENGTH_BITS`] bits of length, in
/// seconds.
#[derive(Debug, Default)]
struct LastRange(AtomicU64);

impl LastRange {
    /// The stored range, if it contains a second.
    #[inline]
    fn get(&self, second: i64) -> Option<DayRange> {
        let packed = self.0.load(Ordering::Relaxed);
        let to = i64::try_from(packed >> LENGTH_BITS).ok()?;
        let from = to - i64::try_from(packed & LENGTH_MAX).ok()?;
        (from <= second && second < to).then_some(DayRange { from, to })
    }

    fn store(&self, range: DayRange) {
        let to = u64::try_from(range.to).ok().filter(|to| *to <= u64::MAX >> LENGTH_BITS);
        let length = u64::try_from(range.to - range.from).ok().filter(|length| *length <= LENGTH_MAX);
        if let Some((to, length)) = to.zip(length) {
            self.0.store(to << LENGTH_BITS | length, Ordering::Relaxed);
        }
    }
}

impl Clone for LastRange {
    fn clone(&self) -> LastRange {
        LastRange(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

/// The cached lookup is not part of the value of a calendar.
impl PartialEq for LastRange {
    fn eq(&self, _: &LastRange) -> bool {
        true
    }
}

impl Eq for LastRange {}

/// The date of a day, counted from 1970-01-01. Windows end centuries before the range of dates does (the year 9999).
fn date_of(day: i64) -> Date {
    EPOCH.saturating_add(SignedDuration::from_hours(24 * day))
}

/// The first day of a month; months are counted from January 1970.
fn first_of_month(months: i64) -> i64 {
    EPOCH.saturating_add(Span::new().months(months)).duration_since(EPOCH).as_hours() / 24
}

/// Nanoseconds between two seconds, saturated at `u64::MAX`.
fn nanos_between(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0).saturating_mul(SECOND_NANOS)
}

/// 366 days and a few hours, in seconds, need 25 bits; the other 39 hold the end of any window that 64 bits of
/// nanoseconds can express.
const LENGTH_BITS: u32 = 25;

const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;

const EPOCH: Date = Date::constant(1970, 1, 1);

const FIRST_MONDAY: i64 = 4;

const DAY_SECONDS: i64 = 86_400;

const SECOND_NANOS: u64 = 1_000_000_000;

/// A day without a change of clocks, in nanoseconds.
pub(super) const DAY_NANOS: u64 = 86_400 * SECOND_NANOS;

#[cfg(test)]
mod tests {
    use super::{DayRange, LastRange};

    #[test]
    fn finds_the_last_stored_range_that_fits() {
        let last = LastRange::default();
        assert_eq!(last.get(0), None);
        let second_max = (1 << 39) - 1;
        let longest = DayRange { from: second_max + 1 - (1 << 25), to: second_max };
        let day = DayRange { from: 86_400, to: 172_800 };
        for range in [longest, day] {
            last.store(range);
            let found = [range.from - 1, range.from, range.to - 1, range.to].map(|second| last.get(second));
            assert_eq!(found, [None, Some(range), Some(range), None]);
        }
        for (from, to) in [(0, 1 << 25), (second_max, second_max + 1), (-172_800, -86_400)] {
            last.store(DayRange { from, to });
            assert_eq!(last.get(day.from), Some(day), "{from} to {to} does not fit");
        }
    }
}
