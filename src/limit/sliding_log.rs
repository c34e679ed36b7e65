//! The sliding log: every unit admitted is kept with its time for as long as it counts. Exact, and therefore large:
//! 12 bytes for each entry. It never forgets a unit early and never keeps one late.
//!
//! ```text
//!        ╭──────────── window ────────────╮
//!   ──×──┼──────×────×──────────────×─────┼──▶ time      ×  an entry: time and units
//!        t − W                            t
//!     gone      counted
//! ```
//!
//! Promise: at most N units in every window (t − W, t], wherever it lies; a request is refused exactly until its
//! `Later` has passed. A unit admitted at t is no longer seen at t + W.
//!
//! Arrivals are kept in the order they were judged: when the clock shows less than the newest entry, that entry's
//! time stands.

use super::entries::{Entries, Run, heap_bytes_of};
use super::rate::WINDOW_NANOS;
use super::{Level, Outcome, RateError};
use crate::clock::{Micros, Now};

/// The largest N. Such a log takes 150 000 bytes for one key; of a window that counts higher nobody can see whether
/// it is exact, and `sliding_window` does it in a thousandth of that.
pub const COUNT_MAX: u32 = 10_000;

/// The numbers of one sliding log: N units in a window of W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    count: u32,
    window_nanos: u64,
    /// Units that are kept apart: N, or more where there is a use for it.
    kept: u32,
}

impl Quota {
    /// At most `count` units in any `window_nanos` nanoseconds.
    ///
    /// # Errors
    /// A count of zero or above [`COUNT_MAX`], a window below a millisecond or above 366 days.
    pub fn new(count: u32, window_nanos: u64) -> Result<Quota, RateError> {
        match count {
            0 => Err(RateError::Zero),
            1..=COUNT_MAX if WINDOW_NANOS.contains(&window_nanos) => {
                Ok(Quota { count, window_nanos, kept: count })
            }
            1..=COUNT_MAX => Err(RateError::Window),
            _ => Err(RateError::LogTooLarge),
        }
    }

    /// The same window with another count. States of the two can be compared.
    ///
    /// # Errors
    /// A count of zero or above [`COUNT_MAX`].
    pub fn with_count(&self, count: u32) -> Result<Quota, RateError> {
        Quota::new(count, self.window_nanos)
    }

    /// The same for logs that also hold more than N: what a soft limit admits, what is charged into debt. So many units
    /// are kept apart, as far as a log goes ([`COUNT_MAX`]).
    #[must_use]
    pub fn keeping(self, units: u32) -> Quota {
        Quota { kept: self.kept.max(units.min(COUNT_MAX)), ..self }
    }

    /// N.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// W in nanoseconds.
    #[must_use]
    pub const fn window_nanos(&self) -> u64 {
        self.window_nanos
    }

    /// W.
    #[must_use]
    pub const fn window(&self) -> Micros {
        Micros(self.window_nanos.div_ceil(NANOS_PER_MICRO))
    }

    /// Bytes of the heap that a key holds: with one entry, and with as many as it ever has.
    #[must_use]
    pub fn heap_bytes(&self) -> (usize, usize) {
        heap_bytes_of(usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

/// The state of one key. 16 bytes, and one block of memory while something counts.
///
/// Which entries are kept: all that are in the window, but units of the same time are one entry, and where there are N
/// entries already, those that have N units or more after them are merged into the next that has not. N is here the
/// number of units that the quota keeps apart ([`Quota::keeping`]).
///
/// *That merging changes no answer.* Whether a request of one unit or more passes depends on whether the units in
/// the window are at most N − cost, which is less than N. As long as the newer units are in the window, they alone
/// refuse it; the merged ones are older, so once they would have made the difference they had left. `remaining` is
/// zero for as long. Only under a larger N, as after a reload, or where a key that stood above N is given units back,
/// merged units count until the entry they are part of leaves: longer than they should, never shorter.
///
/// *There are at most N entries, whatever was charged:* after merging, all but the oldest have less than N units
/// together, the new ones included, and none is empty.
#[derive(Clone, Debug, Default)]
pub struct SlidingLog {
    entries: Entries,
}

impl SlidingLog {
    /// A key never seen: nothing counts, nothing is allocated.
    #[must_use]
    pub fn fresh(_quota: &Quota, _now: Now) -> SlidingLog {
        SlidingLog::default()
    }

    /// What it holds, the oldest first: times in nanoseconds since the engine's origin, each with its units.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.entries.all().each()
    }

    /// The log that holds this; `None` where times go back, an entry is of nothing, or there is more than a log holds.
    #[must_use]
    pub fn of_entries(held: &[(u64, u32)]) -> Option<SlidingLog> {
        let entries_max = usize::try_from(COUNT_MAX).unwrap_or(usize::MAX);
        let units: u64 = held.iter().map(|(_, units)| u64::from(*units)).sum();
        let rises = held.is_sorted_by(|(earlier, _), (later, _)| earlier < later);
        if held.len() > entries_max || units > u64::from(u32::MAX) || !rises {
            return None;
        }
        let mut entries = Entries::default();
        for (nanos, units) in held {
            if *units == 0 {
                return None;
            }
            entries.add(*nanos, *units, entries_max);
        }
        Some(SlidingLog { entries })
    }

    /// Judges one request of `cost` units. `Later` is exact: a microsecond sooner is still refused.
    pub fn judge(&self, quota: &Quota, now: Now, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        let Some(most) = quota.count.checked_sub(cost) else {
            return Outcome::Never;
        };
        let all = self.entries.all();
        // What has left the window and was not dropped yet counts here; if it fits even so, nothing need be sought.
        if all.units() <= most {
            return Outcome::Pass;
        }
        let counted = counted(all, quota, now);
        if counted.units() <= most {
            return Outcome::Pass;
        }
        Outcome::Later(wait(counted, quota, now, most))
    }

    /// Counts `cost` units at this time: they passed, or are counted although refused.
    ///
    /// A key that is judged under several counts (a soft limit) is charged under a quota that keeps as many units apart as
    /// the largest of them ([`Quota::keeping`]): else the larger count may refuse for longer than it has to.
    pub fn charge(&mut self, quota: &Quota, now: Now, cost: u32) {
        if cost == 0 {
            return;
        }
        let nanos = moment(self.entries.all(), now);
        self.forget(quota, now);
        let entries_max = usize::try_from(quota.kept).unwrap_or(usize::MAX);
        let counted = self.entries.all();
        let total = u64::from(counted.units()) + u64::from(cost);
        let mut units = cost;
        if counted.len() >= entries_max || total > u64::from(u32::MAX) {
            // An entry whose sum is at most what is over N has N units or more after it, the new ones included.
            let over = total.saturating_sub(u64::from(quota.kept));
            let merged = counted.count_while(|sum| u64::from(sum) <= over);
            if merged < counted.len() {
                self.entries.merge_oldest(merged);
            } else {
                units = counted.units().saturating_add(cost);
                self.entries.drop_oldest(merged);
            }
        }
        // A sum that still does not fit is far above N, so all but N of it are in the oldest entry, which gives way.
        self.entries.add(nanos, units, entries_max);
    }

    /// Counts what is known after the fact: past N, at most to N + `debt_max`; what is more is dropped.
    pub fn owe(&mut self, quota: &Quota, now: Now, amount: u32, debt_max: u32) {
        let most = quota.count.saturating_add(debt_max);
        let room = most.saturating_sub(counted(self.entries.all(), quota, now).units());
        self.charge(quota, now, amount.min(room));
    }

    /// Takes units back, the newest first; more than there are leaves a fresh key.
    pub fn give_back(&mut self, quota: &Quota, now: Now, amount: u32) {
        self.forget(quota, now);
        self.entries.drop_newest(amount);
    }

    /// What a reply says about this key.
    #[must_use]
    pub fn level(&self, quota: &Quota, now: Now) -> Level {
        let counted = counted(self.entries.all(), quota, now);
        let used = counted.units().min(quota.count);
        let reset = match used.checked_sub(1) {
            Some(less) => wait(counted, quota, now, less),
            None => Micros::ZERO,
        };
        Level {
            limit: u64::from(quota.count),
            window: quota.window(),
            remaining: u64::from(quota.count - used),
            reset,
        }
    }

    /// Nanoseconds until nothing counts any more, if the window is no longer than this; zero for a key that equals
    /// a fresh one.
    #[must_use]
    pub fn nanos_until_fresh(&self, window_nanos: u64, now: Now) -> u64 {
        let newest = self.entries.all().newest();
        newest.map_or(0, |newest| newest.saturating_add(window_nanos).saturating_sub(now.at.as_nanos()))
    }

    /// Bytes of the heap that it holds.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }

    /// Drops what has left the window.
    fn forget(&mut self, quota: &Quota, now: Now) {
        let gone = gone(self.entries.all(), quota, now);
        if gone > 0 {
            self.entries.drop_oldest(gone);
        }
    }
}

/// The time of a judgement: now, unless an entry is newer.
#[inline]
fn moment(all: Run<'_>, now: Now) -> u64 {
    now.at.as_nanos().max(all.newest().unwrap_or(0))
}

/// How many of the oldest entries have left the window.
#[inline]
fn gone(all: Run<'_>, quota: &Quota, now: Now) -> usize {
    let moment = moment(all, now);
    // No entry is newer than the moment.
    all.count_while_time(|nanos| moment.saturating_sub(nanos) >= quota.window_nanos)
}

/// The entries in the window.
#[inline]
fn counted<'a>(all: Run<'a>, quota: &Quota, now: Now) -> Run<'a> {
    all.without_oldest(gone(all, quota, now))
}

/// The wait until at most `most` of the units counted are left, of which there are more now.
fn wait(counted: Run<'_>, quota: &Quota, now: Now, most: u32) -> Micros {
    let too_many = counted.units().saturating_sub(most);
    let last_to_leave = counted.count_while(|sum| sum < too_many);
    // A log holds what leaves it last. The far end of time is a wall: nobody waits past it.
    let leaves = counted.nanos(last_to_leave).unwrap_or(0).saturating_add(quota.window_nanos);
    Micros(leaves.saturating_sub(now.at.as_nanos()).div_ceil(NANOS_PER_MICRO).max(1))
}

const NANOS_PER_MICRO: u64 = 1_000;
