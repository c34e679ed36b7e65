//! Fixed windows: a counter that restarts when its window ends. 11 bytes of state per key; the calendar caches its last
//! lookup.
//!
//! ```text
//!          N            N
//!   ├────────────■┤■───────────┼─────────────┤▶
//!        window       window
//! ```
//!
//! Promise: at most N units in each window, so up to 2N around an edge; retry-after is exactly the end of the window.
//! The state holds the boot-time instant at which its key entered the window, to 256 ns, which always lies in the same
//! window; the current wall clock decides which window contains that instant. A window that begins with a request begins
//! with that unit of 256 ns. So no window counts longer than its own length by the boot-time clock, whatever the
//! wall clock does, and once the wall clock is correct a calendar window ends at its correct instant. A step of the
//! wall clock opens at most one additional window.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::calendar::{Calendar, CalendarStep, DAY_NANOS};
use super::rate::WINDOW_NANOS;
use super::{LimitError, Outcome, QuotaLevel};
use crate::clock::{Micros, Now, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowAlign {
    /// At midnight UTC, or counted from it: calendar months, weeks from Monday, whole days from 1970-01-01. Shorter
    /// windows restart at each midnight (the last of a day is cut there where they do not divide it).
    Utc,
    /// As `Utc`, by the midnights of a time zone. A window shorter than a day keeps its length also on days on which
    /// the clocks change; only the last window of such a day is cut, or added.
    Zone(TimeZone),
    /// At the first request of a key, by the boot-time clock: steps of the wall clock do not affect it.
    First,
    /// At multiples of the length since 1970-01-01T00:00:00Z, as in descriptor trees: weeks begin on Thursday, a month
    /// is 30 days.
    Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowPeriod {
    /// Nanoseconds; whole days are calendar days, which may have 23 hours.
    Nanos(u64),
    /// Calendar months; 30 days each where windows do not follow a calendar (`First`, `Epoch`).
    Months(u32),
}

impl WindowPeriod {
    /// The nominal length in nanoseconds: a month is 30 days.
    pub(crate) fn nanos(self) -> u64 {
        match self {
            WindowPeriod::Nanos(nanos) => nanos,
            WindowPeriod::Months(months) => u64::from(months).saturating_mul(MONTH_NANOS),
        }
    }
}

/// The configured limit: count, length and alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindowQuota {
    count: u32,
    period: WindowPeriod,
    /// The nominal length: a month is 30 days.
    nanos: u64,
    windows: Windows,
    /// The length of every window and the start of one of them, in nanoseconds, if all have the same length; cached
    /// because each reply needs it.
    uniform: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Windows {
    First,
    Epoch,
    Calendar(Calendar),
}

impl FixedWindowQuota {
    /// Makes a limit of `count` units in each window. A count of zero refuses everything.
    ///
    /// # Errors A window below a millisecond or above 366 days; a window that begins at midnight, is longer than a day
    /// and is no whole number of days.
    pub fn new(count: u32, period: WindowPeriod, align: WindowAlign) -> Result<FixedWindowQuota, LimitError> {
        let nanos = period.nanos();
        if !WINDOW_NANOS.contains(&nanos) {
            return Err(LimitError::Window);
        }
        let windows = match align {
            WindowAlign::First => Windows::First,
            WindowAlign::Epoch => Windows::Epoch,
            WindowAlign::Utc => Windows::Calendar(Calendar::new(None, calendar_step(period)?)),
            WindowAlign::Zone(zone) => Windows::Calendar(Calendar::new(Some(zone), calendar_step(period)?)),
        };
        let uniform = match &windows {
            Windows::First | Windows::Epoch => Some((nanos, 0)),
            Windows::Calendar(calendar) => calendar.uniform_period(),
        };
        Ok(FixedWindowQuota { count, period, nanos, windows, uniform })
    }

    /// Returns the same windows with another count: states of the two are comparable.
    ///
    /// # Errors None; every count is valid.
    pub fn with_count(&self, count: u32) -> Result<FixedWindowQuota, LimitError> {
        Ok(FixedWindowQuota { count, ..self.clone() })
    }

    /// The units of one window, N.
    pub const fn count(&self) -> u32 {
        self.count
    }

    pub const fn period(&self) -> WindowPeriod {
        self.period
    }

    /// The nominal length of the windows; a month is 30 days.
    pub const fn window(&self) -> Micros {
        Micros::from_nanos(self.nanos)
    }

    /// Describes the length and the alignment of the windows: states are comparable between equal descriptions.
    pub fn describe_windows(&self) -> String {
        let align = match &self.windows {
            Windows::First => "from the first request".to_owned(),
            Windows::Epoch => "UTC, from 1970 on".to_owned(),
            Windows::Calendar(calendar) => calendar.name(),
        };
        match self.period {
            WindowPeriod::Months(months) => format!("{months} months, {align}"),
            WindowPeriod::Nanos(_) => format!("{}, {align}", self.window()),
        }
    }

    /// An instant on the clock by which the windows end, in nanoseconds: the boot-time clock for windows that begin with
    /// a request, else Unix time. Saturates at 1970, and a nanosecond before `u64::MAX`: a window that ends at the
    /// maximum would otherwise be over as soon as it began.
    #[inline]
    fn reading(&self, now: Now) -> u64 {
        let reading = match self.windows {
            Windows::First => now.at.as_nanos(),
            Windows::Epoch | Windows::Calendar(_) => {
                now.at.as_nanos().saturating_add_signed(now.utc_offset_nanos)
            }
        };
        reading.min(u64::MAX - 1)
    }

    /// The length of every window and the start of one of them, in nanoseconds of Unix time. `None`: their lengths differ.
    pub(super) fn uniform_period(&self) -> Option<(u64, u64)> {
        self.uniform.filter(|_| !self.is_per_key())
    }

    /// Whether each key has its own windows, which begin with its first request.
    pub(super) fn is_per_key(&self) -> bool {
        matches!(self.windows, Windows::First)
    }

    /// The start and the end of the window that contains an instant of Unix time, in nanoseconds.
    pub(super) fn edges(&self, unix_nanos: u64) -> (u64, u64) {
        let reading = unix_nanos.min(u64::MAX - 1);
        let end = self.end_of_window(reading);
        let nanos = match &self.windows {
            Windows::Calendar(calendar) => calendar.window_at(reading).nanos,
            Windows::First | Windows::Epoch => self.nanos,
        };
        (end.saturating_sub(nanos), end)
    }

    pub fn window_nanos_max(&self) -> u64 {
        // Where a zone changes its clocks or skips a date, a window may be longer by up to a day.
        let in_zone = |days: u64, calendar: &Calendar| (days + u64::from(!calendar.is_utc())) * DAY_NANOS;
        match (&self.windows, self.period) {
            (Windows::Calendar(calendar), WindowPeriod::Months(months)) => {
                in_zone(u64::from(months) * LONGEST_MONTH_DAYS, calendar)
            }
            (Windows::Calendar(calendar), WindowPeriod::Nanos(nanos)) if nanos >= DAY_NANOS => {
                in_zone(nanos / DAY_NANOS, calendar)
            }
            _ => self.nanos,
        }
    }

    /// The end of the window that a key enters at a reading of the quota.
    fn end_of_window(&self, reading: u64) -> u64 {
        match &self.windows {
            Windows::First => reading.saturating_add(self.nanos),
            Windows::Epoch => (reading - reading % self.nanos).saturating_add(self.nanos),
            Windows::Calendar(calendar) => calendar.window_at(reading).end,
        }
    }

    /// The real length of the window that contains a reading of the quota.
    ///
    /// For months and time zones this asks the calendar, mostly its cached range: about 20 ns. A lookup in a time zone
    /// takes 200 ns, and 500 ns past the year 2037, where the tables of most zones end.
    fn window_at(&self, reading: u64) -> Micros {
        let nanos = match (self.uniform, &self.windows) {
            (None, Windows::Calendar(calendar)) => calendar.window_at(reading).nanos,
            (uniform, _) => uniform.map_or(self.nanos, |(nanos, _)| nanos),
        };
        Micros::from_nanos(nanos)
    }
}

/// The state of one key: the units counted, and the start of the count.
///
/// Packed, so that it fills a table entry beside its key without padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed)]
pub struct FixedWindowState {
    /// The boot-time instant at which the key entered the window, to 256 ns, and the lowest byte of the count.
    began_and_count: u64,
    count_high: [u8; 3],
}

impl FixedWindowState {
    /// The boot-time instant at which the key entered the window, and the units counted since.
    pub fn to_parts(&self) -> (Timestamp, u32) {
        (self.began(), self.count())
    }

    /// Makes a state from the two numbers of [`to_parts`](FixedWindowState::to_parts); the instant is rounded down.
    #[inline]
    pub fn from_parts(began: Timestamp, count: u32) -> FixedWindowState {
        let [lowest, count_high @ ..] = count.to_le_bytes();
        let began_and_count = began.as_nanos() & !COUNT_BITS | u64::from(lowest);
        FixedWindowState { began_and_count, count_high }
    }

    #[inline]
    fn began(&self) -> Timestamp {
        Timestamp::from_nanos(self.began_and_count & !COUNT_BITS)
    }

    #[inline]
    fn count(&self) -> u32 {
        let ([lowest, ..], [b, c, d]) = (self.began_and_count.to_le_bytes(), self.count_high);
        u32::from_le_bytes([lowest, b, c, d])
    }

    /// Judges one request of `cost` units; changes nothing. `Later` is exact: a microsecond sooner is still refused.
    #[inline]
    pub fn judge(&self, quota: &FixedWindowQuota, now: Now, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        if cost > quota.count {
            return Outcome::Never;
        }
        // The cost is at most N, so the difference is not below zero.
        match self.counted(quota, now) {
            Some((used, left)) if used > quota.count - cost => Outcome::Later(Micros::from_nanos(left)),
            _ => Outcome::Pass,
        }
    }

    /// Counts `cost` units, also beyond N, for a refused request that is counted all the same.
    #[inline]
    pub fn charge(&mut self, quota: &FixedWindowQuota, now: Now, cost: u32) {
        self.count_up(quota, now, cost, u32::MAX);
    }

    /// Charges after the fact: may exceed N by at most `debt_max` units; the excess is dropped.
    pub fn charge_debt(&mut self, quota: &FixedWindowQuota, now: Now, amount: u32, debt_max: u32) {
        self.count_up(quota, now, amount, quota.count.saturating_add(debt_max));
    }

    /// Refunds units, at most those that this window has counted; none if they were charged in one before.
    pub fn refund(&mut self, quota: &FixedWindowQuota, now: Now, amount: u32, charged_at: Option<Timestamp>) {
        if charged_at.is_some_and(|at| at.after(CLOCK_SKEW_MAX) < self.began()) {
            return;
        }
        let left = self.used(quota, now).saturating_sub(amount);
        *self = FixedWindowState::from_parts(self.began(), left);
    }

    /// The numbers of a reply about this key. `window` is the real length of the key's window.
    pub fn level(&self, quota: &FixedWindowQuota, now: Now) -> QuotaLevel {
        let (used, left) = self.counted(quota, now).unwrap_or_default();
        let remaining = quota.count.saturating_sub(used);
        let left = if remaining == quota.count { 0 } else { left };
        let inside = if used == 0 { now.at } else { self.began() };
        QuotaLevel {
            limit: u64::from(quota.count),
            window: quota.window_at(quota.reading(Now { at: inside, ..now })),
            remaining: u64::from(remaining),
            reset: Micros::from_nanos(left),
        }
    }

    /// Nanoseconds until the end of a window in which something is counted; zero when nothing is.
    pub fn nanos_until_end(&self, quota: &FixedWindowQuota, now: Now) -> u64 {
        self.counted(quota, now).map_or(0, |(_, left)| left)
    }

    /// Nanoseconds until the key surely equals a new one, if no window is longer than `nanos_max`; zero when it already
    /// does.
    #[inline]
    pub fn nanos_until_fresh(&self, nanos_max: u64, now: Now) -> u64 {
        let end = self.began().as_nanos().saturating_add(nanos_max);
        if self.count() == 0 { 0 } else { end.saturating_sub(now.at.as_nanos()) }
    }

    /// Counts up to `most`; a key in no window enters the current one.
    #[inline]
    fn count_up(&mut self, quota: &FixedWindowQuota, now: Now, amount: u32, most: u32) {
        if amount == 0 {
            return;
        }
        let used = self.used(quota, now);
        let began = if used == 0 { FixedWindowState::entry_at(quota, now) } else { self.began() };
        *self = FixedWindowState::from_parts(began, used.saturating_add(amount).min(most).max(used));
    }

    /// The instant kept for a key that enters a window now: the start of its unit of 256 ns, or of the next one if that start
    /// is in the window before.
    #[inline]
    fn entry_at(quota: &FixedWindowQuota, now: Now) -> Timestamp {
        let entered = FixedWindowState::from_parts(now.at, 1);
        let (unit, next) = (entered.began(), entered.began().as_nanos().saturating_add(COUNT_BITS + 1));
        if entered.counted(quota, now).is_some() { unit } else { Timestamp::from_nanos(next) }
    }

    /// The units counted now; zero once the window is over.
    #[inline]
    fn used(&self, quota: &FixedWindowQuota, now: Now) -> u32 {
        self.counted(quota, now).map_or(0, |(used, _)| used)
    }

    /// The units counted and the nanoseconds for which they count; `None` if nothing counts.
    #[inline]
    fn counted(&self, quota: &FixedWindowQuota, now: Now) -> Option<(u32, u64)> {
        let (began, count) = self.to_parts();
        if count == 0 {
            return None;
        }
        let reading = quota.reading(Now { at: began, ..now });
        let end = quota.end_of_window(reading);
        let lasts = end.saturating_sub(reading);
        // A window whose end saturates at `u64::MAX` is never over.
        let end = if end == u64::MAX { end } else { began.as_nanos().saturating_add(lasts) };
        let left = end.checked_sub(now.at.as_nanos()).filter(|left| *left > 0 || end == u64::MAX)?;
        Some((count, left.max(1)))
    }
}

/// The calendar step of a period: periods of a day or longer follow calendar days.
fn calendar_step(period: WindowPeriod) -> Result<CalendarStep, LimitError> {
    match period {
        WindowPeriod::Months(months) => Ok(CalendarStep::Months(months)),
        WindowPeriod::Nanos(nanos) if nanos < DAY_NANOS => Ok(CalendarStep::Within(nanos)),
        WindowPeriod::Nanos(nanos) if nanos.is_multiple_of(DAY_NANOS) => {
            u32::try_from(nanos / DAY_NANOS).map(CalendarStep::Days).map_err(|_| LimitError::Window)
        }
        WindowPeriod::Nanos(_) => Err(LimitError::PartDays),
    }
}

/// Of two threads that charge one key, the one that read the clock first may charge last.
const CLOCK_SKEW_MAX: Duration = Duration::from_millis(1);

/// The bits of the count in the word of the instant.
const COUNT_BITS: u64 = 0xff;

const LONGEST_MONTH_DAYS: u64 = 31;

/// A month that follows no calendar, in nanoseconds.
const MONTH_NANOS: u64 = 30 * DAY_NANOS;
