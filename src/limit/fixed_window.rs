//! Fixed windows: a count that starts afresh when its window ends. 12 bytes of state; the calendar remembers the window it
//! was last asked about.
//!
//! ```text
//!          N            N
//!   ├────────────■┤■───────────┼─────────────┤▶
//!        window       window
//! ```
//!
//! Promise: at most N in each window, so up to 2N across an edge; refused exactly until the window ends. The state knows
//! when its key entered the window by the boot-time clock; which window that is, the wall clock says as it stands now. So
//! no window counts longer than its own length by the boot-time clock, whatever the wall clock did meanwhile, and once
//! that is right a window of a calendar ends when it truly ends. A step of the wall clock opens at most one window more.

use jiff::tz::TimeZone;

use super::calendar::{Calendar, DAY_NANOS, Step};
use super::rate::WINDOW_NANOS;
use super::{Level, Outcome, RateError};
use crate::clock::{Micros, Now, Timestamp};

/// Where windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Align {
    /// At midnight UTC, or counted from it: calendar months, weeks from Monday, whole days from 1970-01-01, shorter
    /// ones from each midnight anew (the last of a day is cut at the next where they do not divide it).
    Utc,
    /// The same by the midnights of a time zone. A window shorter than a day lasts as long as it says, also on the days
    /// on which the clocks change; the last of such a day is cut, or added.
    Zone(TimeZone),
    /// With a key's first hit, by the boot-time clock: no step of the wall clock touches them.
    First,
    /// At multiples of their length since 1970-01-01T00:00:00Z, as descriptor trees have it: weeks turn on Thursday, a
    /// month is 30 days.
    Epoch,
}

/// How long windows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Nanoseconds; whole days are days of the calendar, which may have 23 hours.
    Nanos(u64),
    /// Months of the calendar; 30 days each where windows keep to none (`First`, `Epoch`).
    Months(u32),
}

/// The clock by which a window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeline {
    /// The boot-time clock: [`Now::at`].
    Boot,
    /// Unix time: [`Now::at`] and [`Now::utc`].
    Unix,
}

/// The numbers of one fixed window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    count: u32,
    period: Period,
    /// The length that is said where none is meant in particular: a month is 30 days.
    nanos: u64,
    windows: Windows,
    /// The length that every window has, where they all have one: asked for by each reply.
    nanos_of_all: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Windows {
    First,
    Epoch,
    Calendar(Calendar),
}

impl Quota {
    /// `count` units in each window. A count of zero refuses everything.
    ///
    /// # Errors
    /// A window below a millisecond or above 366 days; one that begins at midnight, is longer than a day and no whole
    /// number of days.
    pub fn new(count: u32, period: Period, align: Align) -> Result<Quota, RateError> {
        let nanos = match period {
            Period::Nanos(nanos) => nanos,
            Period::Months(months) => u64::from(months).saturating_mul(MONTH_NANOS),
        };
        if !WINDOW_NANOS.contains(&nanos) {
            return Err(RateError::Window);
        }
        let windows = match align {
            Align::First => Windows::First,
            Align::Epoch => Windows::Epoch,
            Align::Utc => Windows::Calendar(Calendar::new(None, step(period)?)),
            Align::Zone(zone) => Windows::Calendar(Calendar::new(Some(zone), step(period)?)),
        };
        let nanos_of_all = match &windows {
            Windows::First | Windows::Epoch => Some(nanos),
            Windows::Calendar(calendar) => calendar.nanos_of_all(),
        };
        Ok(Quota { count, period, nanos, windows, nanos_of_all })
    }

    /// The same windows with another count: states of the two are comparable.
    ///
    /// # Errors
    /// None; every count can be.
    pub fn with_count(&self, count: u32) -> Result<Quota, RateError> {
        Ok(Quota { count, ..self.clone() })
    }

    /// N.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// How long its windows are, as written.
    #[must_use]
    pub const fn period(&self) -> Period {
        self.period
    }

    /// How long its windows are, a month being 30 days.
    #[must_use]
    pub const fn window(&self) -> Micros {
        Micros(self.nanos.div_ceil(NANOS_PER_MICRO))
    }

    /// Whether the states of two quotas can be compared: their windows are the same.
    #[must_use]
    pub fn has_windows_of(&self, other: &Quota) -> bool {
        self.windows == other.windows && self.nanos == other.nanos
    }

    /// What the states of two quotas have in common when they can be compared, in words.
    #[must_use]
    pub fn shape(&self) -> String {
        let align = match &self.windows {
            Windows::First => "from the first request".to_owned(),
            Windows::Epoch => "UTC, from 1970 on".to_owned(),
            Windows::Calendar(calendar) => calendar.name(),
        };
        match self.period {
            Period::Months(months) => format!("{months} months, {align}"),
            Period::Nanos(_) => format!("{}, {align}", self.window()),
        }
    }

    /// The clock by which its windows end.
    #[must_use]
    pub const fn timeline(&self) -> Timeline {
        match self.windows {
            Windows::First => Timeline::Boot,
            Windows::Epoch | Windows::Calendar(_) => Timeline::Unix,
        }
    }

    /// How long all windows are, and when one of them began, in nanoseconds of Unix time; `None`: they are those of a calendar
    /// that knows of longer and shorter ones, or begin with a request.
    pub(super) fn regular(&self) -> Option<(u64, u64)> {
        match &self.windows {
            Windows::First => None,
            Windows::Epoch => Some((self.nanos, 0)),
            Windows::Calendar(calendar) => calendar.regular(),
        }
    }

    /// Whether each key has windows of its own, which begin with its first request.
    pub(super) fn is_of_each_key(&self) -> bool {
        matches!(self.windows, Windows::First)
    }

    /// When the window began that lies around a moment of Unix time, and when it ends.
    pub(super) fn edges(&self, unix_nanos: u64) -> (u64, u64) {
        let reading = unix_nanos.min(u64::MAX - 1);
        let end = self.end_of_window(reading);
        let nanos = match &self.windows {
            Windows::Calendar(calendar) => calendar.span(reading).nanos,
            Windows::First | Windows::Epoch => self.nanos,
        };
        (end.saturating_sub(nanos), end)
    }

    /// No window is longer.
    #[must_use]
    pub fn nanos_max(&self) -> u64 {
        // Where the clocks of a zone change, and where its days do, a window may be longer by up to a day.
        let in_zone = |days: u64, calendar: &Calendar| (days + u64::from(!calendar.is_utc())) * DAY_NANOS;
        match (&self.windows, self.period) {
            (Windows::Calendar(calendar), Period::Months(months)) => {
                in_zone(u64::from(months) * LONGEST_MONTH_DAYS, calendar)
            }
            (Windows::Calendar(calendar), Period::Nanos(nanos)) if nanos >= DAY_NANOS => {
                in_zone(nanos / DAY_NANOS, calendar)
            }
            _ => self.nanos,
        }
    }

    /// When the window ends that a key enters at a moment of the quota's timeline.
    fn end_of_window(&self, reading: u64) -> u64 {
        match &self.windows {
            Windows::First => reading.saturating_add(self.nanos),
            Windows::Epoch => (reading - reading % self.nanos).saturating_add(self.nanos),
            Windows::Calendar(calendar) => calendar.span(reading).end,
        }
    }

    /// The real length of the window that lies around a moment of the quota's timeline.
    ///
    /// Months and time zones ask the calendar, which answers from what it looked up last: some 20 ns. Looking a window up
    /// in a time zone takes 200 ns, and 500 ns past the year 2037, to which the tables of most zones reach.
    fn window_at(&self, reading: u64) -> Micros {
        let nanos = match (self.nanos_of_all, &self.windows) {
            (None, Windows::Calendar(calendar)) => calendar.span(reading).nanos,
            (nanos, _) => nanos.unwrap_or(self.nanos),
        };
        Micros(nanos.div_ceil(NANOS_PER_MICRO))
    }
}

/// The state of one key: what was counted, and since when.
///
/// In words of four bytes, so that it fills a table's entry beside a digest without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// When the key entered the window, in nanoseconds of the boot-time clock: high and low word.
    began: [u32; 2],
    count: u32,
}

impl FixedWindow {
    /// A key never seen: it enters a window when it is first charged.
    #[must_use]
    pub const fn fresh(_quota: &Quota, _now: Now) -> FixedWindow {
        FixedWindow { began: [0, 0], count: 0 }
    }

    /// When its key entered the window, by the boot-time clock, and what was counted since.
    #[must_use]
    pub fn began_and_count(&self) -> (Timestamp, u32) {
        (self.began(), self.count)
    }

    /// The state that counted so much since then.
    #[must_use]
    pub fn of_began_and_count(began: Timestamp, count: u32) -> FixedWindow {
        FixedWindow { began: words(began.as_nanos()), count }
    }

    /// Judges one request of `cost` units; changes nothing. `Later` is exact: a microsecond sooner is still refused.
    #[inline]
    pub fn judge(&self, quota: &Quota, now: Now, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        if cost > quota.count {
            return Outcome::Never;
        }
        // The cost is at most N, so the difference is not below zero.
        match self.current(quota, now) {
            Some((used, left)) if used > quota.count - cost => Outcome::Later(micros_up(left)),
            _ => Outcome::Pass,
        }
    }

    /// Counts `cost` units, also beyond N: a refused request that is counted all the same.
    #[inline]
    pub fn charge(&mut self, quota: &Quota, now: Now, cost: u32) {
        self.count_up(quota, now, cost, u32::MAX);
    }

    /// Charges after the fact: may go past N, by at most `debt_max` units; what is more is dropped.
    pub fn owe(&mut self, quota: &Quota, now: Now, amount: u32, debt_max: u32) {
        self.count_up(quota, now, amount, quota.count.saturating_add(debt_max));
    }

    /// Gives back what this window had counted; never more than that.
    pub fn give_back(&mut self, quota: &Quota, now: Now, amount: u32) {
        self.count = self.used(quota, now).saturating_sub(amount);
    }

    /// What a reply says about this key. The window is the real length of the one that the key is in.
    #[must_use]
    pub fn level(&self, quota: &Quota, now: Now) -> Level {
        let used = self.used(quota, now);
        let remaining = quota.count.saturating_sub(used);
        let left = if remaining == quota.count { 0 } else { self.nanos_until_end(quota, now) };
        let inside = if used == 0 { now.at } else { self.began() };
        Level {
            limit: u64::from(quota.count),
            window: quota.window_at(quota.timeline().reading(Now { at: inside, ..now })),
            remaining: u64::from(remaining),
            reset: micros_up(left),
        }
    }

    /// Nanoseconds until the window is over in which something counts; zero when nothing does.
    #[must_use]
    pub fn nanos_until_end(&self, quota: &Quota, now: Now) -> u64 {
        self.current(quota, now).map_or(0, |(_, left)| left)
    }

    /// Nanoseconds until the key surely equals one never seen, if no window is longer than this; zero when it does.
    #[inline]
    #[must_use]
    pub fn nanos_until_fresh(&self, nanos_max: u64, now: Now) -> u64 {
        let end = self.began().as_nanos().saturating_add(nanos_max);
        if self.count == 0 { 0 } else { end.saturating_sub(now.at.as_nanos()) }
    }

    /// Counts up to `most`, entering the window of now if the key is in none.
    #[inline]
    fn count_up(&mut self, quota: &Quota, now: Now, amount: u32, most: u32) {
        if amount == 0 {
            return;
        }
        let used = self.used(quota, now);
        if used == 0 {
            self.began = words(now.at.as_nanos());
        }
        self.count = used.saturating_add(amount).min(most).max(used);
    }

    /// What counts now: nothing once the window is over.
    #[inline]
    fn used(&self, quota: &Quota, now: Now) -> u32 {
        self.current(quota, now).map_or(0, |(used, _)| used)
    }

    /// What counts, and for how many nanoseconds yet; `None`: nothing does.
    #[inline]
    fn current(&self, quota: &Quota, now: Now) -> Option<(u32, u64)> {
        if self.count == 0 {
            return None;
        }
        let began = self.began();
        let reading = quota.timeline().reading(Now { at: began, ..now });
        let lasts = quota.end_of_window(reading).saturating_sub(reading);
        let end = began.as_nanos().saturating_add(lasts);
        // At the far end of time, where it ends with the numbers, a window is never over.
        let left = end.checked_sub(now.at.as_nanos()).filter(|left| *left > 0 || end == u64::MAX)?;
        Some((self.count, left.max(1)))
    }

    #[inline]
    fn began(&self) -> Timestamp {
        let [high, low] = self.began;
        Timestamp::from_nanos(u64::from(high) << 32 | u64::from(low))
    }
}

impl Timeline {
    /// What its clock shows, in nanoseconds. Before 1970 time stands still; so it does a nanosecond before the numbers
    /// end, or a window that ends there would be over as soon as it began.
    #[inline]
    fn reading(self, now: Now) -> u64 {
        let reading = match self {
            Timeline::Boot => now.at.as_nanos(),
            Timeline::Unix => now.at.as_nanos().saturating_add_signed(now.utc),
        };
        reading.min(u64::MAX - 1)
    }
}

/// High and low word.
#[inline]
fn words(nanos: u64) -> [u32; 2] {
    let [a, b, c, d, low @ ..] = nanos.to_be_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(low)]
}

/// The windows of a calendar: what is a day or longer turns with its days.
fn step(period: Period) -> Result<Step, RateError> {
    match period {
        Period::Months(months) => Ok(Step::Months(months)),
        Period::Nanos(nanos) if nanos < DAY_NANOS => Ok(Step::Within(nanos)),
        Period::Nanos(nanos) if nanos.is_multiple_of(DAY_NANOS) => {
            u32::try_from(nanos / DAY_NANOS).map(Step::Days).map_err(|_| RateError::Window)
        }
        Period::Nanos(_) => Err(RateError::PartDays),
    }
}

#[inline]
const fn micros_up(nanos: u64) -> Micros {
    Micros(nanos.div_ceil(NANOS_PER_MICRO))
}

const LONGEST_MONTH_DAYS: u64 = 31;

/// A month of no calendar.
const MONTH_NANOS: u64 = 30 * DAY_NANOS;

const NANOS_PER_MICRO: u64 = 1_000;
