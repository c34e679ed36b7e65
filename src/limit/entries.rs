//! The entries of one sliding log in one block of memory. The module works on times and units; limit and window are its
//! caller's.
//!
//! ```text
//!   words  │ head, len │ dropped     │ oldest … newest │ free │
//!            1 word      3 words for each entry: time low, time high, sum
//! ```
//!
//! The sum of an entry is the total of all units up to and including it, so the units of a run of entries take one
//! subtraction and a cut takes a binary search. Sums wrap; they are read as the distance from the sum of the entry
//! before the oldest, which stays in its slot, or from zero at the front of the block. Dropped entries stay in their
//! slots until the block is full; then the rest moves to the front at once.

use super::{halves, join, malloc_block_bytes};

/// The block of entries; empty entries allocate nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct LogEntries {
    words: Box<[u32]>,
}

impl LogEntries {
    #[inline]
    pub(super) fn all(&self) -> EntryRun<'_> {
        let (head, len) = self.span();
        let slots = self.slots();
        let base = head.checked_sub(1).and_then(|before| slots.get(before)).map_or(0, sum);
        EntryRun { base, entries: slots.get(head..head + len).unwrap_or_default() }
    }

    pub(super) fn drop_oldest(&mut self, dropped: usize) {
        let (head, len) = self.span();
        match len.saturating_sub(dropped) {
            0 => self.set_span(0, 0),
            left => self.set_span(head + dropped, left),
        }
    }

    /// Drops the newest `units` units and splits an entry if necessary.
    pub(super) fn drop_newest(&mut self, units: u32) {
        let all = self.all();
        let left = all.units().saturating_sub(units);
        if left == 0 {
            self.words = Box::default();
            return;
        }
        let (base, whole) = (all.base, all.count_while(|sum| sum < left));
        let (head, _) = self.span();
        self.set_sum(head + whole, base.wrapping_add(left));
        self.set_span(head, whole + 1);
    }

    /// Merges the oldest `merged` entries into the entry after them.
    pub(super) fn merge_oldest(&mut self, merged: usize) {
        let (head, len) = self.span();
        let base = self.all().base;
        if merged > 0 && merged < len {
            self.set_sum(head + merged - 1, base);
            self.set_span(head + merged, len - merged);
        }
    }

    /// Adds units at a time, which must not be before the time of the newest entry. The block grows to hold at most
    /// `most` entries (at least one) and some spare slots; it shrinks when it has become far too large.
    ///
    /// Where the total exceeds `u32::MAX`, the oldest entry loses the excess: it must have as many units to spare.
    pub(super) fn add(&mut self, nanos: u64, units: u32, most: usize) {
        let total = u64::from(self.all().units()) + u64::from(units);
        let excess = total.saturating_sub(u64::from(u32::MAX));
        if let Ok(excess @ 1..) = u32::try_from(excess) {
            self.move_down(excess);
        }
        let (head, len) = self.span();
        let all = self.all();
        let sum = all.base.wrapping_add(all.units()).wrapping_add(units);
        if all.newest() == Some(nanos) {
            self.set_sum(head + len - 1, sum);
            return;
        }
        self.make_room(most);
        // `make_room` may have moved all entries, and with them the base of the sums.
        let (head, len) = self.span();
        let all = self.all();
        let sum = all.base.wrapping_add(all.units()).wrapping_add(units);
        if let Some(slot) = self.slots_mut().get_mut(head + len) {
            *slot = entry(nanos, sum);
        }
        self.set_span(head, len + 1);
    }

    /// Bytes that malloc allocates for the block.
    pub(super) fn heap_bytes(&self) -> usize {
        malloc_block_bytes(self.words.len() * size_of::<u32>())
    }

    /// Makes room for one more entry after the newest.
    fn make_room(&mut self, most: usize) {
        let (head, len) = self.span();
        let (slots, slots_max) = (self.slots().len(), slots_max(most).max(len + 1));
        if slots > slots_max || slots > SLOTS_KEPT && (len + 1) * SHRINK_BELOW <= slots {
            return self.move_to(slots_for(2 * (len + 1)).min(slots_max));
        }
        if head + len < slots {
            return;
        }
        // Moving down pays when it frees a quarter; at the largest size it is the only way, and it always frees a slot.
        if head > 0 && (head * 4 >= slots || slots >= slots_max) {
            self.move_down(0);
        } else {
            self.move_to(slots_for(slots + 1).min(slots_max));
        }
    }

    /// Moves all entries to the front, where sums count from zero; the oldest entry loses `given_up` units.
    fn move_down(&mut self, given_up: u32) {
        let base = self.all().base.wrapping_add(given_up);
        let (head, len) = self.span();
        let slots = self.slots_mut();
        if head + len <= slots.len() {
            slots.copy_within(head..head + len, 0);
        }
        for [_, _, sum] in slots.iter_mut().take(len) {
            *sum = sum.wrapping_sub(base);
        }
        self.set_span(0, len);
    }

    /// Moves all entries to a new block of `slots` slots.
    fn move_to(&mut self, slots: usize) {
        self.move_down(0);
        let mut words = vec![0; 1 + slots * SLOT_WORDS].into_boxed_slice();
        for (to, from) in words.iter_mut().zip(&self.words) {
            *to = *from;
        }
        self.words = words;
    }

    fn slots(&self) -> &[LogEntry] {
        self.words.get(1..).unwrap_or_default().as_chunks().0
    }

    fn slots_mut(&mut self) -> &mut [LogEntry] {
        self.words.get_mut(1..).unwrap_or_default().as_chunks_mut().0
    }

    fn set_sum(&mut self, slot: usize, to: u32) {
        if let Some([_, _, sum]) = self.slots_mut().get_mut(slot) {
            *sum = to;
        }
    }

    /// The slot of the oldest entry, and the number of entries.
    fn span(&self) -> (usize, usize) {
        let [a, b, c, d] = self.words.first().copied().unwrap_or(0).to_le_bytes();
        (usize::from(u16::from_le_bytes([a, b])), usize::from(u16::from_le_bytes([c, d])))
    }

    fn set_span(&mut self, head: usize, len: usize) {
        if let (Some(word), Ok(head), Ok(len)) =
            (self.words.first_mut(), u32::try_from(head), u32::try_from(len))
        {
            // Both fit 16 bits: there are at most 12 500 slots (see `slots_max`).
            *word = (len << 16) | head;
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EntryRun<'a> {
    base: u32,
    entries: &'a [LogEntry],
}

impl<'a> EntryRun<'a> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The time and the own units of each entry.
    pub(super) fn iter(self) -> impl Iterator<Item = (u64, u32)> + 'a {
        let before = std::iter::once(self.base).chain(self.entries.iter().map(sum));
        self.entries.iter().zip(before).map(|(entry, before)| (nanos(entry), sum(entry).wrapping_sub(before)))
    }

    #[inline]
    pub(super) fn units(&self) -> u32 {
        self.entries.last().map_or(0, |last| sum(last).wrapping_sub(self.base))
    }

    /// The time of the newest entry, in nanoseconds.
    #[inline]
    pub(super) fn newest(&self) -> Option<u64> {
        self.entries.last().map(nanos)
    }

    /// The time of one entry, in nanoseconds.
    pub(super) fn nanos(&self, index: usize) -> Option<u64> {
        self.entries.get(index).map(nanos)
    }

    /// The run without its oldest `dropped` entries.
    pub(super) fn without_oldest(self, dropped: usize) -> Self {
        let base = dropped.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(self.base, sum);
        EntryRun { base, entries: self.entries.get(dropped..).unwrap_or_default() }
    }

    /// The number of leading entries whose sum (of all units up to and including the entry) satisfies `holds`. Sums
    /// rise, and `holds` must stay false once it is false.
    pub(super) fn count_while(&self, holds: impl Fn(u32) -> bool) -> usize {
        count_leading(self.entries, |entry| holds(sum(entry).wrapping_sub(self.base)))
    }

    /// The number of leading entries whose time satisfies `holds`, which must stay false once it is false. Times never
    /// fall.
    pub(super) fn count_while_time(&self, holds: impl Fn(u64) -> bool) -> usize {
        count_leading(self.entries, |entry| holds(nanos(entry)))
    }
}

/// Time low, time high, sum.
type LogEntry = [u32; SLOT_WORDS];

fn entry(nanos: u64, sum: u32) -> LogEntry {
    let [low, high] = halves(nanos);
    [low, high, sum]
}

#[inline]
fn nanos([low, high, _]: &LogEntry) -> u64 {
    join([*low, *high])
}

#[inline]
fn sum([_, _, sum]: &LogEntry) -> u32 {
    *sum
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
    (slots_bytes(1), slots_bytes(slots_max(most)))
}

const fn slots_bytes(slots: usize) -> usize {
    malloc_block_bytes((1 + slots * SLOT_WORDS) * size_of::<u32>())
}

/// The smallest number of slots for `entries`: with the head word it fills the size to which malloc rounds up.
fn slots_for(entries: usize) -> usize {
    (entries + 1).next_power_of_two() - 1
}

/// The largest number of slots for `entries`: a quarter more than they need, so that they move down once per that many
/// charges. A log of 7 or less moves down each time, to stay small.
const fn slots_max(entries: usize) -> usize {
    if entries < 8 { entries } else { entries + entries / 4 }
}

const SLOT_WORDS: usize = 3;

/// A block shrinks when less than this fraction of it is used: small enough that it does not grow again at once.
const SHRINK_BELOW: usize = 8;

/// A block of 3 entries is not worth shrinking: malloc allocates as much for a block of 1.
const SLOTS_KEPT: usize = 3;
