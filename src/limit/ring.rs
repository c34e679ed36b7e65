//! The counters of one sliding window: a ring of buckets and their total. Limit and window are its caller's; the ring
//! holds only the boot-time instant at which its newest bucket was first counted in.
//!
//! ```text
//!   in the table   │ began │ total, newest │ ─┐
//!   on the heap    │ … newest │ oldest … │ ◀─┘   4 bytes per bucket
//! ```
//!
//! A new bucket replaces the oldest one, and the total is updated incrementally: of sixty buckets a check reads two,
//! which are adjacent, in one block outside the table.

use super::heap::malloc_block_bytes;
use crate::clock::Timestamp;

/// The ring. Two counters are stored inline; more buckets use a block of memory while something is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    began: Timestamp,
    counters: RingCounters,
}

/// The counters: inline, or in a block of one of the sizes that malloc has. A block of any size would need its length
/// in the table.
#[derive(Clone, Debug)]
enum RingCounters {
    /// The newer first. For a ring of more buckets: nothing is counted.
    Two([u32; 2]),
    Six(RingHead, Box<[u32; 6]>),
    Ten(RingHead, Box<[u32; 10]>),
    Fourteen(RingHead, Box<[u32; 14]>),
    Thirty(RingHead, Box<[u32; 30]>),
    All(RingHead, Box<[u32; 61]>),
}

/// The total of all buckets, the index of the newest and the number of buckets; bytes, to fit beside the pointer.
#[derive(Clone, Copy, Debug, Default)]
struct RingHead {
    /// The lowest five bytes: 61 counters of 32 bits sum to less than 38 bits.
    total: [u8; 5],
    newest: u8,
    len: u8,
}

impl Default for RingCounters {
    fn default() -> RingCounters {
        RingCounters::Two([0; 2])
    }
}

impl Ring {
    /// Makes a ring from counts, the newest first, and the instant at which the newest was first counted in. `None` if
    /// the number of counts is below 2 or above 61.
    pub(super) fn from_counts(began: Timestamp, counts: &[u32]) -> Option<Ring> {
        if let [newer, older] = counts {
            return Some(Ring { began, counters: RingCounters::Two([*newer, *older]) });
        }
        let len = u8::try_from(counts.len()).ok().filter(|len| (3..=COUNTERS_MAX).contains(len))?;
        let mut counters = RingCounters::new(len);
        let (head, slots) = counters.block_mut()?;
        for (back, count) in counts.iter().enumerate() {
            *slots.get_mut(head.slot(back)?)? = *count;
        }
        head.set_total(counts.iter().map(|count| u64::from(*count)).sum());
        Some(Ring { began, counters })
    }

    /// The number of buckets; 2 if nothing is counted.
    pub(super) fn len(&self) -> usize {
        self.head_and_counts().0.len()
    }

    /// The boot-time instant at which the newest bucket was first counted in.
    #[inline]
    pub(super) fn began(&self) -> Timestamp {
        self.began
    }

    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.head_and_counts().0.total()
    }

    /// The count of the bucket `back` places before the newest; zero if there is none.
    #[inline]
    pub(super) fn count(&self, back: usize) -> u32 {
        let (head, counts) = self.head_and_counts();
        head.slot(back).and_then(|slot| counts.get(slot)).copied().unwrap_or(0)
    }

    /// Advances by `passed` buckets and drops as many of the oldest. A new newest bucket begins at `now`.
    pub(super) fn advance(&mut self, passed: usize, now: Timestamp, len: u8) {
        if passed > 0 || self.total() == 0 {
            self.began = now;
        }
        if let RingCounters::Two([newer, older]) = &mut self.counters {
            match passed {
                _ if len > 2 => self.counters = RingCounters::new(len),
                0 => {}
                1 => (*newer, *older) = (0, *newer),
                _ => (*newer, *older) = (0, 0),
            }
            return;
        }
        let Some((head, counts)) = self.counters.block_mut() else { return };
        let mut total = head.total();
        for _ in 0..passed.min(head.len()) {
            head.newest = if head.newest + 1 < head.len { head.newest + 1 } else { 0 };
            if let Some(count) = counts.get_mut(usize::from(head.newest)) {
                total -= u64::from(std::mem::take(count));
            }
        }
        head.set_total(total);
    }

    /// Counts units in the newest bucket, saturated.
    pub(super) fn add(&mut self, units: u32) {
        if let RingCounters::Two([newer, _]) = &mut self.counters {
            *newer = newer.saturating_add(units);
            return;
        }
        let Some((head, counts)) = self.counters.block_mut() else { return };
        if let Some(count) = counts.get_mut(usize::from(head.newest)) {
            let before = std::mem::replace(count, count.saturating_add(units));
            head.set_total(head.total() + u64::from(*count - before));
        }
    }

    /// Removes units, from the newest bucket first. A ring that counts nothing frees its block.
    pub(super) fn remove(&mut self, units: u32) {
        let mut left = units;
        let mut take = |count: &mut u32| {
            let taken = left.min(*count);
            (*count, left) = (*count - taken, left - taken);
            u64::from(taken)
        };
        if let RingCounters::Two(counts) = &mut self.counters {
            counts.iter_mut().for_each(|count| {
                take(count);
            });
            return;
        }
        let Some((head, counts)) = self.counters.block_mut() else { return };
        let mut total = head.total();
        for back in 0..head.len() {
            if let Some(count) = head.slot(back).and_then(|slot| counts.get_mut(slot)) {
                total -= take(count);
            }
        }
        head.set_total(total);
        if total == 0 {
            *self = Ring::default();
        }
    }

    /// Bytes that malloc allocates for the ring.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.counters {
            RingCounters::Two(_) => 0,
            RingCounters::Six(head, _)
            | RingCounters::Ten(head, _)
            | RingCounters::Fourteen(head, _)
            | RingCounters::Thirty(head, _)
            | RingCounters::All(head, _) => heap_bytes_of(head.len),
        }
    }

    #[inline]
    fn head_and_counts(&self) -> (RingHead, &[u32]) {
        match &self.counters {
            RingCounters::Two(counts) => (RingHead::for_two(counts), counts),
            RingCounters::Six(head, counts) => (*head, &**counts),
            RingCounters::Ten(head, counts) => (*head, &**counts),
            RingCounters::Fourteen(head, counts) => (*head, &**counts),
            RingCounters::Thirty(head, counts) => (*head, &**counts),
            RingCounters::All(head, counts) => (*head, &**counts),
        }
    }
}

impl RingCounters {
    /// Makes zero counters for `len` buckets, at most 61.
    fn new(len: u8) -> RingCounters {
        let head = RingHead { len, ..RingHead::default() };
        match len {
            ..=6 => RingCounters::Six(head, Box::default()),
            7..=10 => RingCounters::Ten(head, Box::default()),
            11..=14 => RingCounters::Fourteen(head, Box::default()),
            15..=30 => RingCounters::Thirty(head, Box::default()),
            31.. => RingCounters::All(head, Box::new([0; 61])),
        }
    }

    #[inline]
    fn block_mut(&mut self) -> Option<(&mut RingHead, &mut [u32])> {
        match self {
            RingCounters::Two(_) => None,
            RingCounters::Six(head, counts) => Some((head, &mut **counts)),
            RingCounters::Ten(head, counts) => Some((head, &mut **counts)),
            RingCounters::Fourteen(head, counts) => Some((head, &mut **counts)),
            RingCounters::Thirty(head, counts) => Some((head, &mut **counts)),
            RingCounters::All(head, counts) => Some((head, &mut **counts)),
        }
    }
}

impl RingHead {
    /// Describes two inline counters as a ring of two with the newest first.
    #[inline]
    fn for_two([newer, older]: &[u32; 2]) -> RingHead {
        let mut head = RingHead { len: 2, ..RingHead::default() };
        head.set_total(u64::from(*newer) + u64::from(*older));
        head
    }

    #[inline]
    fn len(self) -> usize {
        usize::from(self.len)
    }

    /// The index of the bucket `back` places before the newest.
    #[inline]
    fn slot(self, back: usize) -> Option<usize> {
        let newest = usize::from(self.newest);
        let slot = if back <= newest { newest - back } else { (newest + self.len()).checked_sub(back)? };
        (back < self.len()).then_some(slot)
    }

    #[inline]
    fn total(self) -> u64 {
        let [a, b, c, d, e] = self.total;
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }

    #[inline]
    fn set_total(&mut self, total: u64) {
        let [a, b, c, d, e, ..] = total.to_le_bytes();
        self.total = [a, b, c, d, e];
    }
}

/// Bytes that malloc allocates for a ring of `len` buckets while something is counted.
pub(super) const fn heap_bytes_of(len: u8) -> usize {
    let counters = match len {
        ..=2 => 0,
        3..=6 => 6,
        7..=10 => 10,
        11..=14 => 14,
        15..=30 => 30,
        31.. => 61,
    };
    malloc_block_bytes(counters * size_of::<u32>())
}

/// Sixty buckets, and the one that the window is leaving.
const COUNTERS_MAX: u8 = 61;

/// A table entry has 40 bytes, its digest included.
const _: () = assert!(size_of::<Ring>() == 24);
