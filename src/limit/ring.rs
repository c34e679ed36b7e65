//! The counters of one sliding window: a ring of buckets, and what they count together. It knows when its newest bucket
//! started, never a limit or a window.
//!
//! ```text
//!   words  │ start │ … newest │ oldest … │
//!            2       1 for each bucket, in a ring
//! ```
//!
//! A bucket that is new takes the place of the oldest, and the total is kept by what comes and goes: of sixty buckets a
//! judgement reads two, which stand side by side. The total and which is the newest have room beside the pointer.

use super::heap::block_bytes;

/// The counters of one bucket and the one before it are kept in place; more buckets have a block of memory while
/// something counts.
#[derive(Clone, Debug)]
pub(super) enum Ring {
    Two {
        start_nanos: u64,
        /// The newer first.
        counts: [u32; 2],
    },
    /// As drawn above; nothing when nothing counts.
    Many { head: Head, words: Box<[u32]> },
}

/// What all buckets count together, and which is the newest. 61 counters of 32 bits come to less than 38 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    total: u32,
    total_high: u8,
    newest: u8,
}

impl Ring {
    /// Nothing counts, nothing is allocated.
    pub(super) fn empty(len: usize) -> Ring {
        if len == 2 { Ring::Two { start_nanos: 0, counts: [0; 2] } } else { Ring::many(Box::default()) }
    }

    fn many(words: Box<[u32]>) -> Ring {
        Ring::Many { head: Head::default(), words }
    }

    /// How many buckets there are; none as long as nothing is allocated.
    pub(super) fn len(&self) -> usize {
        match self {
            Ring::Two { .. } => 2,
            Ring::Many { words, .. } => words.len().saturating_sub(START_WORDS),
        }
    }

    /// When the newest bucket started.
    #[inline]
    pub(super) fn start_nanos(&self) -> u64 {
        match self {
            Ring::Two { start_nanos, .. } => *start_nanos,
            Ring::Many { words, .. } => match **words {
                [low, high, ..] => u64::from(high) << 32 | u64::from(low),
                _ => 0,
            },
        }
    }

    /// What all buckets count together.
    #[inline]
    pub(super) fn total(&self) -> u64 {
        match self {
            Ring::Two { counts: [newer, older], .. } => u64::from(*newer) + u64::from(*older),
            Ring::Many { head, .. } => head.total(),
        }
    }

    /// What the bucket counts that stands so many before the newest; nothing where there is none.
    #[inline]
    pub(super) fn count(&self, back: usize) -> u32 {
        match self {
            Ring::Two { counts, .. } => counts.get(back).copied().unwrap_or(0),
            Ring::Many { words, .. } => {
                self.place(back).and_then(|place| words.get(place)).copied().unwrap_or(0)
            }
        }
    }

    /// Moves on by so many buckets, the newest of which starts then; as many of the oldest are forgotten.
    pub(super) fn advance(&mut self, passed: usize, nanos: u64, len: usize) {
        if self.len() != len {
            *self = Ring::many(vec![0; START_WORDS + len].into_boxed_slice());
        }
        match self {
            Ring::Two { start_nanos, counts: [newer, older] } => {
                *start_nanos = nanos;
                match passed {
                    0 => {}
                    1 => (*newer, *older) = (0, *newer),
                    _ => (*newer, *older) = (0, 0),
                }
            }
            Ring::Many { words, .. } => {
                if let [low, high, ..] = &mut **words {
                    (*low, *high) = halves(nanos);
                }
                let (mut total, mut newest) = self.head();
                for _ in 0..passed.min(len) {
                    newest = if newest + 1 < len { newest + 1 } else { 0 };
                    if let Some(count) = self.slot(newest) {
                        total -= u64::from(std::mem::take(count));
                    }
                }
                self.set_head(total, newest);
            }
        }
    }

    /// Counts in the newest bucket, as far as its counter goes.
    pub(super) fn add(&mut self, units: u32) {
        if let Ring::Two { counts: [newer, _], .. } = self {
            *newer = newer.saturating_add(units);
            return;
        }
        let (total, newest) = self.head();
        let Some(count) = self.slot(newest) else { return };
        let before = std::mem::replace(count, count.saturating_add(units));
        let added = u64::from(*count - before);
        self.set_head(total + added, newest);
    }

    /// Takes units back, from the newest bucket first. Once nothing counts, nothing is allocated.
    pub(super) fn take(&mut self, units: u32) {
        if let Ring::Two { counts, .. } = self {
            let mut left = units;
            for count in counts {
                let taken = left.min(*count);
                (*count, left) = (*count - taken, left - taken);
            }
            return;
        }
        let (mut total, newest) = self.head();
        if total <= u64::from(units) {
            *self = Ring::many(Box::default());
            return;
        }
        let mut left = units;
        for back in 0..self.len() {
            let place = self.place(back).unwrap_or_default().saturating_sub(START_WORDS);
            let Some(count) = self.slot(place).filter(|_| left > 0) else { break };
            let taken = left.min(*count);
            (*count, left) = (*count - taken, left - taken);
            total -= u64::from(taken);
        }
        self.set_head(total, newest);
    }

    /// Bytes that malloc hands out for it.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Ring::Many { words, .. } if !words.is_empty() => heap_bytes_of(self.len()),
            Ring::Two { .. } | Ring::Many { .. } => 0,
        }
    }

    /// Among the words, the bucket so many before the newest.
    #[inline]
    fn place(&self, back: usize) -> Option<usize> {
        let (len, (_, newest)) = (self.len(), self.head());
        let slot = if back <= newest { newest - back } else { (newest + len).checked_sub(back)? };
        (back < len).then_some(START_WORDS + slot)
    }

    fn slot(&mut self, slot: usize) -> Option<&mut u32> {
        match self {
            Ring::Two { .. } => None,
            Ring::Many { words, .. } => words.get_mut(START_WORDS + slot),
        }
    }

    /// The total, and which bucket is the newest.
    #[inline]
    fn head(&self) -> (u64, usize) {
        match self {
            Ring::Two { .. } => (self.total(), 0),
            Ring::Many { head, .. } => (head.total(), usize::from(head.newest)),
        }
    }

    fn set_head(&mut self, total: u64, newest: usize) {
        let (low, high) = halves(total);
        if let (Ring::Many { head, .. }, Ok(total_high), Ok(newest)) =
            (self, u8::try_from(high), u8::try_from(newest))
        {
            *head = Head { total: low, total_high, newest };
        }
    }
}

impl Head {
    #[inline]
    fn total(self) -> u64 {
        u64::from(self.total_high) << 32 | u64::from(self.total)
    }
}

#[inline]
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, high @ ..] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(high))
}

/// Bytes that malloc hands out for a ring of so many buckets while something counts.
pub(super) const fn heap_bytes_of(len: usize) -> usize {
    if len == 2 { 0 } else { block_bytes((START_WORDS + len) * size_of::<u32>()) }
}

/// The start of the newest bucket, ahead of the counts.
const START_WORDS: usize = 2;

/// A table's entry has no more room beside a digest.
const _: () = assert!(size_of::<Ring>() == 24);
