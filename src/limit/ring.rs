//! The counters of one sliding window: a ring of buckets and their total. Limit and window are its caller's; the ring
//! holds only the boot-time instant at which its newest bucket was first counted in.
//!
//! ```text
//!   in the table   │ began │ block │ ─┐
//!   on the heap    │ newest, total │ … newest │ oldest … │ ◀─┘   4 bytes per bucket
//! ```
//!
//! A new bucket replaces the oldest one, and the total is updated incrementally: of sixty buckets a check reads two,
//! which are adjacent, in one block outside the table.

use super::{halves, join, malloc_block_bytes};
use crate::clock::Timestamp;

/// The ring. Two counters are stored inline; more buckets use a block of memory while something is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    began: Timestamp,
    counters: RingCounters,
}

#[derive(Clone, Debug)]
enum RingCounters {
    /// The newer first. For a ring of more buckets: nothing is counted.
    Two([u32; 2]),
    /// [`HEAD_WORDS`], and a counter for each bucket.
    Many(Box<[u32]>),
}

/// The index of the newest counter, and the total of all, the lower half first.
type RingHead = [u32; HEAD_WORDS];

impl Default for RingCounters {
    fn default() -> RingCounters {
        RingCounters::Two([0; 2])
    }
}

impl RingCounters {
    /// Makes zero counters for more than two buckets.
    fn new(len: usize) -> RingCounters {
        RingCounters::Many(vec![0; HEAD_WORDS + len].into_boxed_slice())
    }

    #[inline]
    fn block_mut(&mut self) -> Option<(&mut RingHead, &mut [u32])> {
        match self {
            RingCounters::Two(_) => None,
            RingCounters::Many(words) => words.split_first_chunk_mut(),
        }
    }
}

impl Ring {
    /// Makes a ring from counts, the newest first, and the instant at which the newest was first counted in. `None` if
    /// the number of counts is below 2 or above 61.
    pub(super) fn from_counts(began: Timestamp, counts: &[u32]) -> Option<Ring> {
        if let [newer, older] = counts {
            return Some(Ring { began, counters: RingCounters::Two([*newer, *older]) });
        }
        if !(3..=COUNTERS_MAX).contains(&counts.len()) {
            return None;
        }
        let mut counters = RingCounters::new(counts.len());
        let (head, slots) = counters.block_mut()?;
        for (back, count) in counts.iter().enumerate() {
            *slots.get_mut(slot(head, back, counts.len())?)? = *count;
        }
        set_total(head, counts.iter().map(|count| u64::from(*count)).sum());
        Some(Ring { began, counters })
    }

    /// The number of buckets; 2 if nothing is counted.
    pub(super) fn len(&self) -> usize {
        self.head_and_counts().1.len()
    }

    /// The boot-time instant at which the newest bucket was first counted in.
    #[inline]
    pub(super) fn began(&self) -> Timestamp {
        self.began
    }

    #[inline]
    pub(super) fn total(&self) -> u64 {
        total(&self.head_and_counts().0)
    }

    /// The count of the bucket `back` places before the newest; zero if there is none.
    #[inline]
    pub(super) fn count(&self, back: usize) -> u32 {
        let (head, counts) = self.head_and_counts();
        slot(&head, back, counts.len()).and_then(|slot| counts.get(slot)).copied().unwrap_or(0)
    }

    /// The counts of the newest `buckets` buckets, the oldest of them first.
    #[inline]
    pub(super) fn oldest_first(&self, buckets: usize) -> impl Iterator<Item = u32> {
        let (head, counts) = self.head_and_counts();
        let (newer, older) = counts.split_at_checked(newest(&head) + 1).unwrap_or_default();
        older.iter().chain(newer).copied().skip(counts.len().saturating_sub(buckets))
    }

    /// Advances by `passed` buckets and drops as many of the oldest. A new newest bucket begins at `now`.
    pub(super) fn advance(&mut self, passed: usize, now: Timestamp, len: u8) {
        if passed > 0 || self.total() == 0 {
            self.began = now;
        }
        if let RingCounters::Two([newer, older]) = &mut self.counters {
            match passed {
                _ if len > 2 => self.counters = RingCounters::new(usize::from(len)),
                0 => {}
                1 => (*newer, *older) = (0, *newer),
                _ => (*newer, *older) = (0, 0),
            }
            return;
        }
        let Some((head, counts)) = self.counters.block_mut() else { return };
        let mut left = total(head);
        for _ in 0..passed.min(counts.len()) {
            let next = newest(head) + 1;
            let next = if next < counts.len() { next } else { 0 };
            if let (Some(count), Ok(next)) = (counts.get_mut(next), u32::try_from(next)) {
                left -= u64::from(std::mem::take(count));
                let [newest, ..] = head;
                *newest = next;
            }
        }
        set_total(head, left);
    }

    /// Counts units in the newest bucket, saturated.
    pub(super) fn add(&mut self, units: u32) {
        if let RingCounters::Two([newer, _]) = &mut self.counters {
            *newer = newer.saturating_add(units);
            return;
        }
        let Some((head, counts)) = self.counters.block_mut() else { return };
        if let Some(count) = counts.get_mut(newest(head)) {
            let before = std::mem::replace(count, count.saturating_add(units));
            set_total(head, total(head) + u64::from(*count - before));
        }
    }

    /// Removes units, from the newest bucket first.
    pub(super) fn remove(&mut self, units: u32) {
        let mut left = units;
        for back in 0..self.len() {
            let taken = left.min(self.count(back));
            left -= taken;
            self.remove_of(back, taken);
        }
    }

    /// Removes units of the bucket `back` places before the newest, if there is one. A ring that counts nothing frees its block.
    pub(super) fn remove_of(&mut self, back: usize, units: u32) {
        self.set_count(back, self.count(back).saturating_sub(units));
        if self.total() == 0 {
            *self = Ring { began: self.began, counters: RingCounters::default() };
        }
    }

    fn set_count(&mut self, back: usize, count: u32) {
        if let RingCounters::Two(counts) = &mut self.counters {
            counts.get_mut(back).into_iter().for_each(|slot| *slot = count);
            return;
        }
        let Some((head, counts)) = self.counters.block_mut() else { return };
        let slot = slot(head, back, counts.len()).and_then(|slot| counts.get_mut(slot));
        if let Some(slot) = slot {
            let before = std::mem::replace(slot, count);
            set_total(head, total(head) - u64::from(before) + u64::from(count));
        }
    }

    /// Bytes that malloc allocates for the ring.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.counters {
            RingCounters::Two(_) => 0,
            RingCounters::Many(words) => malloc_block_bytes(size_of_val(&**words)),
        }
    }

    #[inline]
    fn head_and_counts(&self) -> (RingHead, &[u32]) {
        let none = ([0; HEAD_WORDS], &[][..]);
        match &self.counters {
            RingCounters::Two(counts) => {
                let mut head = [0; HEAD_WORDS];
                set_total(&mut head, counts.iter().map(|count| u64::from(*count)).sum());
                (head, counts)
            }
            RingCounters::Many(words) => {
                words.split_first_chunk().map_or(none, |(head, counts)| (*head, counts))
            }
        }
    }
}

#[inline]
fn newest([newest, ..]: &RingHead) -> usize {
    *newest as usize
}

#[inline]
fn total([_, low, high]: &RingHead) -> u64 {
    join([*low, *high])
}

#[inline]
fn set_total([_, low, high]: &mut RingHead, total: u64) {
    [*low, *high] = halves(total);
}

/// The index of the bucket `back` places before the newest, of `len`.
#[inline]
fn slot(head: &RingHead, back: usize, len: usize) -> Option<usize> {
    let newest = newest(head);
    let slot = if back <= newest { newest - back } else { (newest + len).checked_sub(back)? };
    (back < len).then_some(slot)
}

/// Bytes that malloc allocates for a ring of `len` buckets while something is counted.
pub(super) fn heap_bytes_of(len: u8) -> usize {
    if len <= 2 { 0 } else { malloc_block_bytes((HEAD_WORDS + usize::from(len)) * size_of::<u32>()) }
}

const HEAD_WORDS: usize = 3;

/// Sixty buckets, and the one that the window is leaving.
const COUNTERS_MAX: usize = 61;

/// A table entry has 40 bytes, its digest included.
const _: () = assert!(size_of::<Ring>() == 24);
