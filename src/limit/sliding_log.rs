//! The sliding log: keeps every admitted unit with its time while it counts. Exact, and therefore large: 10 bytes per
//! entry. No unit leaves early or late.
//!
//! ```text
//!        ╭──────────── window ────────────╮
//!   ──×──┼──────×────×──────────────×─────┼──▶ time      ×  an entry: time and units
//!        t − W                            t
//!  dropped      counted
//! ```
//!
//! Promise: at most N units in every window (t − W, t]; `Later` is exact. A unit admitted at t no longer counts at t +
//! W.
//!
//! Entries are in the order of judgement: when the clock shows less than the time of the newest entry, that time is
//! used.

use super::entries::{EntryRun, LogEntries, NEWER_UNITS_MAX, heap_bytes_of};
use super::rate::WINDOW_NANOS;
use super::{LimitError, Outcome, QuotaLevel};
use crate::clock::{Micros, Now, Timestamp};

/// The largest N. Such a log takes 125 000 bytes per key; above it exactness is not observable, and `sliding_window`
/// takes a thousandth of the memory.
pub const COUNT_MAX: u32 = 10_000;

/// The configured limit: N units in a window of W.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLogQuota {
    count: u32,
    window_nanos: u64,
    /// Units stored separately: N, or more where a soft limit or debt needs them.
    stored_units: u32,
}

impl SlidingLogQuota {
    /// Makes a limit of at most `count` units in any `window_nanos` nanoseconds.
    ///
    /// # Errors A count of zero or above [`COUNT_MAX`], a window below a millisecond or above 366 days.
    pub fn new(count: u32, window_nanos: u64) -> Result<SlidingLogQuota, LimitError> {
        match count {
            0 => Err(LimitError::Zero),
            1..=COUNT_MAX if WINDOW_NANOS.contains(&window_nanos) => {
                Ok(SlidingLogQuota { count, window_nanos, stored_units: count })
            }
            1..=COUNT_MAX => Err(LimitError::Window),
            _ => Err(LimitError::LogTooLarge),
        }
    }

    /// Returns the same window with another count; states of the two are comparable.
    ///
    /// # Errors A count of zero or above [`COUNT_MAX`].
    pub fn with_count(&self, count: u32) -> Result<SlidingLogQuota, LimitError> {
        SlidingLogQuota::new(count, self.window_nanos)
    }

    /// Returns the limit for logs that exceed N under a soft limit or debt: `units` are stored separately, up to
    /// [`COUNT_MAX`].
    pub fn with_stored_units(self, units: u32) -> SlidingLogQuota {
        SlidingLogQuota { stored_units: self.stored_units.max(units.min(COUNT_MAX)), ..self }
    }

    /// The units of one window, N.
    pub const fn count(&self) -> u32 {
        self.count
    }

    pub const fn window_nanos(&self) -> u64 {
        self.window_nanos
    }

    pub const fn window(&self) -> Micros {
        Micros::from_nanos(self.window_nanos)
    }

    /// Heap bytes of a key: with one entry, and the most that a key has while it counts no more than N.
    pub fn heap_bytes(&self) -> (usize, usize) {
        heap_bytes_of(usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

/// The state of one key: 32 bytes with the first three entries, or with the block of memory of more.
///
/// All entries in the window are kept, with two exceptions: units of the same time are one entry, and where there are N
/// entries already, or more units than the sums of entries hold, those with N units or more after them are merged into the
/// next entry that has fewer. N is here the number of units that the quota stores separately
/// ([`SlidingLogQuota::with_stored_units`]).
///
/// *Merging changes no decision.* A request of one unit or more passes if the units in the window are at most N − cost,
/// which is less than N. While the newer units are in the window, they alone refuse it; the merged ones are older, so
/// they have left before they could make the difference. `remaining` is zero for as long. Only under a larger N, as
/// after a reload, or where a key above N gets a refund, merged units count until their entry leaves: longer than
/// exact, never shorter.
///
/// *There are at most N entries, whatever was charged:* after merging, all but the oldest have less than N units
/// together, the new ones included, and none is empty.
#[derive(Clone, Debug, Default)]
pub struct SlidingLogState {
    entries: LogEntries,
}

impl SlidingLogState {
    /// The entries, the oldest first: times in nanoseconds since the engine's origin, each with its units.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.entries.all().iter()
    }

    /// Makes a log from its entries; `None` if times do not rise, an entry has no units, or there are more than a log
    /// holds.
    pub fn from_entries(held: &[(u64, u32)]) -> Option<SlidingLogState> {
        let entries_max = usize::try_from(COUNT_MAX).unwrap_or(usize::MAX);
        let units: u64 = held.iter().map(|(_, units)| u64::from(*units)).sum();
        let rises = held.is_sorted_by(|(earlier, _), (later, _)| earlier < later);
        if held.len() > entries_max || units > u64::from(u32::MAX) || !rises {
            return None;
        }
        let mut log = SlidingLogState::default();
        for (nanos, units) in held {
            if *units == 0 {
                return None;
            }
            // The quota is not known: as many units are separate as any stores.
            log.add(*nanos, *units, COUNT_MAX);
        }
        Some(log)
    }

    /// Judges one request of `cost` units. `Later` is exact: a microsecond sooner is still refused.
    pub fn judge(&self, quota: &SlidingLogQuota, now: Now, cost: u32) -> Outcome {
        if cost == 0 {
            return Outcome::Pass;
        }
        let Some(most) = quota.count.checked_sub(cost) else {
            return Outcome::Never;
        };
        let all = self.entries.all();
        // This total includes entries that have left the window and are not dropped yet; if it fits, no search is
        // needed.
        if all.units() <= most {
            return Outcome::Pass;
        }
        let counted = entries_in_window(all, quota, now);
        if counted.units() <= most {
            return Outcome::Pass;
        }
        Outcome::Later(wait(counted, quota, now, most))
    }

    /// Counts `cost` units now: they passed, or are counted although refused.
    ///
    /// A key judged under several counts (a soft limit) must be charged under a quota that stores the largest of them
    /// separately ([`SlidingLogQuota::with_stored_units`]): otherwise the larger count may refuse for too long.
    pub fn charge(&mut self, quota: &SlidingLogQuota, now: Now, cost: u32) {
        if cost == 0 {
            return;
        }
        let nanos = judgement_nanos(self.entries.all(), now);
        self.drop_expired(quota, now);
        self.add(nanos, cost, quota.stored_units);
    }

    /// Adds an entry, and merges older ones if necessary.
    fn add(&mut self, nanos: u64, cost: u32, stored_units: u32) {
        let entries_max = usize::try_from(stored_units).unwrap_or(usize::MAX);
        let counted = self.entries.all();
        let total = u64::from(counted.units()) + u64::from(cost);
        let mut units = cost;
        if counted.len() >= entries_max || total > u64::from(NEWER_UNITS_MAX) {
            // An entry whose sum is at most the excess over N has N units or more after it, the new ones included.
            let over = total.saturating_sub(u64::from(stored_units));
            let merged = counted.count_while(|sum| u64::from(sum) <= over);
            if merged < counted.len() {
                self.entries.merge_oldest(merged);
            } else {
                units = counted.units().saturating_add(cost);
                self.entries.drop_oldest(merged);
            }
        }
        // A total that does not fit is far above N, so all but N of it are in the oldest entry, which loses the excess.
        self.entries.add(nanos, units, entries_max);
    }

    /// Charges after the fact: may exceed N by at most `debt_max` units; the excess is dropped.
    pub fn charge_debt(&mut self, quota: &SlidingLogQuota, now: Now, amount: u32, debt_max: u32) {
        let most = quota.count.saturating_add(debt_max);
        let room = most.saturating_sub(entries_in_window(self.entries.all(), quota, now).units());
        self.charge(quota, now, amount.min(room));
    }

    /// Refunds units that were charged at an instant: those of its entry, or of the one that it was merged into; none once it
    /// has left the window. Without an instant the newest first; refunding more than there are yields the state of a new key.
    pub fn refund(&mut self, quota: &SlidingLogQuota, now: Now, amount: u32, charged_at: Option<Timestamp>) {
        self.drop_expired(quota, now);
        let Some(charged) = charged_at.map(Timestamp::as_nanos) else {
            return self.entries.drop_newest(amount);
        };
        let all = self.entries.all();
        if judgement_nanos(all, now).saturating_sub(charged) < quota.window_nanos {
            // A thread that read the clock before the newest entry was charged has charged that one.
            self.entries.drop_units_of(all.count_while_time(|nanos| nanos < charged), amount);
        }
    }

    pub fn level(&self, quota: &SlidingLogQuota, now: Now) -> QuotaLevel {
        let counted = entries_in_window(self.entries.all(), quota, now);
        let used = counted.units().min(quota.count);
        let reset = match used.checked_sub(1) {
            Some(less) => wait(counted, quota, now, less),
            None => Micros::ZERO,
        };
        QuotaLevel {
            limit: u64::from(quota.count),
            window: quota.window(),
            remaining: u64::from(quota.count - used),
            reset,
        }
    }

    /// Nanoseconds until nothing is counted any more, if the window is no longer than `window_nanos`; zero for the
    /// state of a new key.
    pub fn nanos_until_fresh(&self, window_nanos: u64, now: Now) -> u64 {
        let newest = self.entries.all().newest();
        newest.map_or(0, |newest| newest.saturating_add(window_nanos).saturating_sub(now.at.as_nanos()))
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }

    /// Drops entries that have left the window.
    fn drop_expired(&mut self, quota: &SlidingLogQuota, now: Now) {
        self.entries.drop_oldest(count_expired(self.entries.all(), quota, now));
    }
}

/// The time of a judgement, in nanoseconds: now, or the time of the newest entry if that is later.
#[inline]
fn judgement_nanos(all: EntryRun<'_>, now: Now) -> u64 {
    now.at.as_nanos().max(all.newest().unwrap_or(0))
}

/// The number of oldest entries that have left the window.
#[inline]
fn count_expired(all: EntryRun<'_>, quota: &SlidingLogQuota, now: Now) -> usize {
    let moment = judgement_nanos(all, now);
    // No entry is newer than `moment`.
    all.count_while_time(|nanos| moment.saturating_sub(nanos) >= quota.window_nanos)
}

#[inline]
fn entries_in_window<'a>(all: EntryRun<'a>, quota: &SlidingLogQuota, now: Now) -> EntryRun<'a> {
    all.without_oldest(count_expired(all, quota, now))
}

/// The wait until at most `most` of the counted units are left; there are more now.
fn wait(counted: EntryRun<'_>, quota: &SlidingLogQuota, now: Now, most: u32) -> Micros {
    let too_many = counted.units().saturating_sub(most);
    let last_to_leave = counted.count_while(|sum| sum < too_many);
    // The log contains the entry that leaves last. Times saturate at `u64::MAX`.
    let leaves = counted.nanos(last_to_leave).unwrap_or(0).saturating_add(quota.window_nanos);
    Micros::from_nanos(leaves.saturating_sub(now.at.as_nanos()).max(1))
}
