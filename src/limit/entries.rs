//! The entries of one sliding log: three in the table, more in one block of memory. The module works on times and units;
//! limit and window are its caller's.
//!
//! ```text
//!   few    │ len │ oldest … newest │ free │
//!   many   │ head, len, units │ block │ ──▶ │ dropped │ oldest … newest │ free │
//!                                           10 bytes for each entry: time, sum
//! ```
//!
//! The sum of an entry is the total of all units up to and including it, so the units of a run of entries take one
//! subtraction and a cut takes a binary search. Sums wrap; they are read as the distance to the sum of the newest entry,
//! which is at most [`NEWER_UNITS_MAX`]. All units together are counted apart, up to `u32::MAX`: the oldest entry has those
//! that no other has. Dropped entries stay in their slots until the block is full; then the rest moves to the front at once.

use super::{low_half, malloc_block_bytes};

/// The entries; none allocate nothing.
#[derive(Clone, Debug)]
pub(super) enum LogEntries {
    /// The units of all are the sum of the newest.
    Few { len: u8, slots: [LogEntry; FEW] },
    /// `head` is the slot of the oldest entry.
    Many { head: u16, len: u16, units: u32, slots: Box<[LogEntry]> },
}

/// Packed: three, with their number and the variant, fill four words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed)]
pub(super) struct LogEntry {
    nanos: u64,
    sum: u16,
}

impl Default for LogEntries {
    fn default() -> LogEntries {
        LogEntries::Few { len: 0, slots: [LogEntry::default(); FEW] }
    }
}

impl LogEntries {
    #[inline]
    pub(super) fn all(&self) -> EntryRun<'_> {
        match self {
            LogEntries::Few { len, slots } => {
                let entries = slots.get(..usize::from(*len)).unwrap_or_default();
                EntryRun { units: newest_sum(entries).into(), entries }
            }
            LogEntries::Many { head, len, units, slots } => {
                let (head, len) = (usize::from(*head), usize::from(*len));
                EntryRun { units: *units, entries: slots.get(head..head + len).unwrap_or_default() }
            }
        }
    }

    pub(super) fn drop_oldest(&mut self, dropped: usize) {
        self.cut_oldest(dropped, self.all().without_oldest(dropped).units);
    }

    /// Drops the newest `units` units and splits an entry if necessary.
    pub(super) fn drop_newest(&mut self, units: u32) {
        let all = self.all();
        let left = all.units.saturating_sub(units);
        let whole = all.count_while(|sum| sum < left);
        let Some(nanos) = all.nanos(whole).filter(|_| left > 0) else {
            *self = LogEntries::default();
            return;
        };
        let sum = newest_sum(all.entries).wrapping_sub(low_half(all.units - left));
        self.set_newest(whole, LogEntry { nanos, sum }, left);
    }

    /// Drops units of one entry, counted from the oldest, and the entry if none are left.
    pub(super) fn drop_units_of(&mut self, index: usize, units: u32) {
        let Some((_, own)) = self.all().iter().nth(index) else { return };
        let dropped = units.min(own);
        let held = match self {
            LogEntries::Few { len, slots } => slots.get_mut(index..usize::from(*len)),
            LogEntries::Many { head, len, units, slots } => {
                *units -= dropped;
                slots.get_mut(usize::from(*head) + index..usize::from(*head) + usize::from(*len))
            }
        };
        let held = held.unwrap_or_default();
        for entry in &mut *held {
            entry.sum = entry.sum.wrapping_sub(low_half(dropped));
        }
        if dropped < own {
            return;
        }
        held.rotate_left(1);
        match self {
            LogEntries::Few { len, .. } => *len -= 1,
            LogEntries::Many { len, .. } => *len -= 1,
        }
        if self.all().len() == 0 {
            *self = LogEntries::default();
        }
    }

    /// Merges the oldest `merged` entries, which are not all, into the entry after them.
    pub(super) fn merge_oldest(&mut self, merged: usize) {
        self.cut_oldest(merged, self.all().units);
    }

    /// Adds units at a time, which must not be before the time of the newest entry. The block grows to hold at most
    /// `most` entries (at least one) and some spare slots; it shrinks when it has become far too large.
    ///
    /// All entries but the oldest have at most [`NEWER_UNITS_MAX`] units afterwards: the caller merges others before. Where the
    /// total exceeds `u32::MAX`, the oldest entry loses the excess: it must have as many units to spare.
    pub(super) fn add(&mut self, nanos: u64, units: u32, most: usize) {
        let total = self.all().units.saturating_add(units);
        let is_new = self.all().newest() != Some(nanos);
        self.make_room(usize::from(is_new), total, most);
        let entries = self.all().entries;
        let sum = newest_sum(entries).wrapping_add(low_half(units));
        self.set_newest(entries.len() + usize::from(is_new) - 1, LogEntry { nanos, sum }, total);
    }

    /// Bytes that malloc allocates for the block.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            LogEntries::Few { .. } => 0,
            LogEntries::Many { slots, .. } => malloc_block_bytes(size_of_val(&**slots)),
        }
    }

    /// Drops the oldest entries. The rest has `units` units: the oldest of it gains or loses some.
    fn cut_oldest(&mut self, cut: usize, units: u32) {
        match self {
            LogEntries::Few { len, slots } => {
                let left = usize::from(*len).saturating_sub(cut);
                slots.rotate_left(cut.min(FEW));
                let held = slots.get_mut(..left).unwrap_or_default();
                let change = low_half(units).wrapping_sub(newest_sum(held));
                for entry in held {
                    entry.sum = entry.sum.wrapping_add(change);
                }
                *len = u8::try_from(left).unwrap_or_default();
            }
            LogEntries::Many { head, len, units: all, .. } => {
                let cut = u16::try_from(cut).unwrap_or(u16::MAX).min(*len);
                (*head, *len, *all) = (*head + cut, *len - cut, units);
                if *len == 0 {
                    *head = 0;
                }
            }
        }
    }

    /// Sets the entry at an index, from the oldest on; it is the newest then, and all entries together have `total` units.
    fn set_newest(&mut self, index: usize, newest: LogEntry, total: u32) {
        let slot = match self {
            LogEntries::Few { len, slots } => {
                *len = u8::try_from(index + 1).unwrap_or_default();
                slots.get_mut(index)
            }
            LogEntries::Many { head, len, units, slots } => {
                *len = u16::try_from(index + 1).unwrap_or_default();
                *units = total;
                slots.get_mut(usize::from(*head) + index)
            }
        };
        slot.into_iter().for_each(|slot| *slot = newest);
    }

    /// Makes room for `added` more entries after the newest, for `total` units in all.
    fn make_room(&mut self, added: usize, total: u32, most: usize) {
        let needed = self.all().len() + added;
        let slots_max = slots_max(most).max(needed);
        let (head, slots) = match self {
            LogEntries::Few { .. } if needed <= FEW && total <= NEWER_UNITS_MAX => return,
            LogEntries::Few { .. } => return self.move_to_block(slots_for(needed).min(slots_max)),
            LogEntries::Many { head, slots, .. } => (usize::from(*head), slots.len()),
        };
        if slots > slots_max || needed * SHRINK_BELOW <= slots {
            if needed <= FEW && total <= NEWER_UNITS_MAX {
                return self.move_to_table();
            }
            return self.move_to_block(slots_for(2 * needed).min(slots_max));
        }
        if head + needed <= slots {
            return;
        }
        if head > 0 && (head * MOVED_ABOVE >= slots || slots >= slots_max) {
            // At the largest size, moving down is the only way, and it always frees a slot.
            self.move_down();
        } else {
            self.move_to_block(slots_for(slots + 1).min(slots_max));
        }
    }

    /// Moves all entries to the front of their block.
    fn move_down(&mut self) {
        if let LogEntries::Many { head, len, slots, .. } = self {
            let (from, len) = (usize::from(std::mem::take(head)), usize::from(*len));
            if from + len <= slots.len() {
                slots.copy_within(from..from + len, 0);
            }
        }
    }

    /// Moves all entries to a new block of `slots` slots.
    fn move_to_block(&mut self, slots: usize) {
        let EntryRun { units, entries } = self.all();
        let mut slots = vec![LogEntry::default(); slots].into_boxed_slice();
        copy(entries, &mut slots);
        let len = u16::try_from(entries.len()).unwrap_or_default();
        *self = LogEntries::Many { head: 0, len, units, slots };
    }

    /// Moves all entries from their block to the table, where few enough are left.
    fn move_to_table(&mut self) {
        let EntryRun { units, entries } = self.all();
        let mut slots = [LogEntry::default(); FEW];
        copy(entries, &mut slots);
        *self = LogEntries::Few { len: u8::try_from(entries.len()).unwrap_or_default(), slots };
        self.cut_oldest(0, units);
    }
}

fn copy(from: &[LogEntry], to: &mut [LogEntry]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRun<'a> {
    units: u32,
    entries: &'a [LogEntry],
}

impl<'a> EntryRun<'a> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The time and the own units of each entry.
    pub(super) fn iter(self) -> impl Iterator<Item = (u64, u32)> + 'a {
        let mut before = 0;
        self.entries.iter().map(move |entry| {
            let units = self.sum(entry) - before;
            before += units;
            (entry.nanos, units)
        })
    }

    #[inline]
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// The time of the newest entry, in nanoseconds.
    #[inline]
    pub(super) fn newest(&self) -> Option<u64> {
        self.entries.last().map(|newest| newest.nanos)
    }

    pub(super) fn nanos(&self, index: usize) -> Option<u64> {
        self.entries.get(index).map(|entry| entry.nanos)
    }

    /// The run without its oldest `dropped` entries.
    pub(super) fn without_oldest(self, dropped: usize) -> Self {
        let Some(last) = dropped.checked_sub(1).and_then(|last| self.entries.get(last)) else { return self };
        EntryRun { units: self.units_after(last), entries: self.entries.get(dropped..).unwrap_or_default() }
    }

    /// The number of leading entries whose sum (of all units up to and including the entry) satisfies `holds`. Sums
    /// rise, and `holds` must stay false once it is false.
    pub(super) fn count_while(&self, holds: impl Fn(u32) -> bool) -> usize {
        count_leading(self.entries, |entry| holds(self.sum(entry)))
    }

    /// The number of leading entries whose time satisfies `holds`, which must stay false once it is false. Times never
    /// fall.
    pub(super) fn count_while_time(&self, holds: impl Fn(u64) -> bool) -> usize {
        count_leading(self.entries, |entry| holds(entry.nanos))
    }

    fn sum(&self, entry: &LogEntry) -> u32 {
        self.units - self.units_after(entry)
    }

    fn units_after(&self, entry: &LogEntry) -> u32 {
        newest_sum(self.entries).wrapping_sub(entry.sum).into()
    }
}

#[inline]
fn newest_sum(entries: &[LogEntry]) -> u16 {
    entries.last().map_or(0, |newest| newest.sum)
}

/// The number of leading entries that satisfy `holds`. Searches in doubling steps first: the end is mostly near the
/// front, which is already in the cache, whereas a binary search of a log of 100 touches six cold lines.
fn count_leading(entries: &[LogEntry], holds: impl Fn(&LogEntry) -> bool) -> usize {
    let mut end = 1;
    while entries.get(end - 1).is_some_and(&holds) {
        end *= 2;
    }
    let known = end / 2;
    let unknown = entries.get(known..(end - 1).min(entries.len())).unwrap_or_default();
    known + unknown.partition_point(holds)
}

/// Bytes that malloc allocates for the block of a key: with one entry, and with the largest block for `most` entries.
pub(super) const fn heap_bytes_of(most: usize) -> (usize, usize) {
    (0, if most <= FEW { 0 } else { malloc_block_bytes(slots_max(most) * size_of::<LogEntry>()) })
}

/// The smallest number of slots for `entries` that fills the size to which malloc rounds up.
fn slots_for(entries: usize) -> usize {
    (entries + 4).next_power_of_two() - 4
}

/// The largest number of slots for `entries`: a quarter more than they need, so that they move down once per that many
/// charges. A log of 7 or less moves down each time, to stay small.
const fn slots_max(entries: usize) -> usize {
    if entries < 8 { entries } else { entries + entries / 4 }
}

/// The most units of all entries but the oldest, and of entries in the table.
pub(super) const NEWER_UNITS_MAX: u32 = 0xffff;

/// The entries that the table holds.
const FEW: usize = 3;

/// A block shrinks when less than this fraction of it is used: small enough that it does not grow again at once.
const SHRINK_BELOW: usize = 8;

/// Moving down pays when it frees more than this fraction of the block.
const MOVED_ABOVE: usize = 6;

/// A table entry has 48 bytes, its key included.
const _: () = assert!(size_of::<LogEntries>() == 32);
