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

use super::heap::block_bytes;
use crate::clock::Timestamp;

/// The ring. Two counters are stored inline; more buckets use a block of memory while something is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    began: Timestamp,
    counters: Counters,
}

/// The counters: inline, or in a block of one of the sizes that malloc has. A block of any size would need its length
/// in the table.
#[derive(Clone, Debug)]
enum Counters {
    /// The newer first. For a ring of more buckets: nothing is counted.
    Two([u32; 2]),
    Six(Head, Box<[u32; 6]>),
    Ten(Head, Box<[u32; 10]>),
    Fourteen(Head, Box<[u32; 14]>),
    Thirty(Head, Box<[u32; 30]>),
    All(Head, Box<[u32; 61]>),
}

/// The total of all buckets, the index of the newest and the number of buckets; bytes, to fit beside the pointer.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// The lowest five bytes: 61 counters of 32 bits sum to less than 38 bits.
    total: [u8; 5],
    newest: u8,
    len: u8,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::Two([0; 2])
    }
}

impl Ring {
    /// Makes a ring from counts, the newest first, and the instant at which the newest was first counted in. `None` if
    /// the number of counts is below 2 or above 61.
    pub(super) fn of_counts(began: Timestamp, counts: &[u32]) -> Option<Ring> {
        if let [newer, older] = counts {
            return Some(Ring { began, counters: Counters::Two([*newer, *older]) });
        }
        let len = u8::try_from(counts.len()).ok().filter(|len| (3..=COUNTERS_MAX).contains(len))?;
        let mut counters = Counters::new(len);
        let (head, slots) = counters.many()?;
        for (back, count) in counts.iter().enumerate() {
            *slots.get_mut(head.slot(back)?)? = *count;
        }
        head.set_total(counts.iter().map(|count| u64::from(*count)).sum());
        Some(Ring { began, counters })
    }

    /// The number of buckets; 2 if nothing is counted.
    pub(super) fn len(&self) -> usize {
        self.parts().0.len()
    }

    /// The boot-time instant at which the newest bucket was first counted in.
    #[inline]
    pub(super) fn began(&self) -> Timestamp {
        self.began
    }

    /// The total of all buckets.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.parts().0.total()
    }

    /// The count of the bucket `back` places before the newest; zero if there is none.
    #[inline]
    pub(super) fn count(&self, back: usize) -> u32 {
        let (head, counts) = self.parts();
        head.slot(back).and_then(|slot| counts.get(slot)).copied().unwrap_or(0)
    }

    /// Advances by `passed` buckets and drops as many of the oldest. A new newest bucket begins at `now`.
    pub(super) fn advance(&mut self, passed: usize, now: Timestamp, len: u8) {
        if passed > 0 || self.total() == 0 {
            self.began = now;
        }
        if let Counters::Two([newer, older]) = &mut self.counters {
            match passed {
                _ if len > 2 => self.counters = Counters::new(len),
                0 => {}
                1 => (*newer, *older) = (0, *newer),
                _ => (*newer, *older) = (0, 0),
            }
            return;
        }
        let Some((head, counts)) = self.counters.many() else { return };
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
        if let Counters::Two([newer, _]) = &mut self.counters {
            *newer = newer.saturating_add(units);
            return;
        }
        let Some((head, counts)) = self.counters.many() else { return };
        if let Some(count) = counts.get_mut(usize::from(head.newest)) {
            let before = std::mem::replace(count, count.saturating_add(units));
            head.set_total(head.total() + u64::from(*count - before));
        }
    }

    /// Removes units, from the newest bucket first. A ring that counts nothing frees its block.
    pub(super) fn take(&mut self, units: u32) {
        let mut left = units;
        let mut take = |count: &mut u32| {
            let taken = left.min(*count);
            (*count, left) = (*count - taken, left - taken);
            u64::from(taken)
        };
        if let Counters::Two(counts) = &mut self.counters {
            counts.iter_mut().for_each(|count| {
                take(count);
            });
            return;
        }
        let Some((head, counts)) = self.counters.many() else { return };
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
            Counters::Two(_) => 0,
            Counters::Six(head, _)
            | Counters::Ten(head, _)
            | Counters::Fourteen(head, _)
            | Counters::Thirty(head, _)
            | Counters::All(head, _) => heap_bytes_of(head.len),
        }
    }

    #[inline]
    fn parts(&self) -> (Head, &[u32]) {
        match &self.counters {
            Counters::Two(counts) => (Head::of_two(counts), counts),
            Counters::Six(head, counts) => (*head, &**counts),
            Counters::Ten(head, counts) => (*head, &**counts),
            Counters::Fourteen(head, counts) => (*head, &**counts),
            Counters::Thirty(head, counts) => (*head, &**counts),
            Counters::All(head, counts) => (*head, &**counts),
        }
    }
}

impl Counters {
    /// Makes zero counters for `len` buckets, at most 61.
    fn new(len: u8) -> Counters {
        let head = Head { len, ..Head::default() };
        match len {
            ..=6 => Counters::Six(head, Box::default()),
            7..=10 => Counters::Ten(head, Box::default()),
            11..=14 => Counters::Fourteen(head, Box::default()),
            15..=30 => Counters::Thirty(head, Box::default()),
            31.. => Counters::All(head, Box::new([0; 61])),
        }
    }

    /// The block, if there is one.
    #[inline]
    fn many(&mut self) -> Option<(&mut Head, &mut [u32])> {
        match self {
            Counters::Two(_) => None,
            Counters::Six(head, counts) => Some((head, &mut **counts)),
            Counters::Ten(head, counts) => Some((head, &mut **counts)),
            Counters::Fourteen(head, counts) => Some((head, &mut **counts)),
            Counters::Thirty(head, counts) => Some((head, &mut **counts)),
            Counters::All(head, counts) => Some((head, &mut **counts)),
        }
    }
}

impl Head {
    /// Describes two inline counters as a ring of two with the newest first.
    #[inline]
    fn of_two([newer, older]: &[u32; 2]) -> Head {
        let mut head = Head { len: 2, ..Head::default() };
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
    block_bytes(counters * size_of::<u32>())
}

/// Sixty buckets, and the one that the window is leaving.
const COUNTERS_MAX: u8 = 61;

/// A table entry has 40 bytes, its digest included.
const _: () = assert!(size_of::<Ring>() == 24);
