//! The numbers that holders know their leases by: nobody can guess one, and each leads to its place in one step.

use crate::engine::digest::{HashKey, KeyHash};
use crate::engine::sync::{AtomicU64, Ordering};

/// Makes numbers and finds what they hide.
#[derive(Debug)]
pub(super) struct Numbers {
    secret: KeyHash,
    counter: AtomicU64,
}

impl Numbers {
    pub(super) fn new(hash_key: &HashKey) -> Numbers {
        Numbers { secret: hash_key.of_purpose("leases"), counter: AtomicU64::new(0) }
    }

    /// Counts from here on.
    pub(super) fn begin_at(&self, number: u64) {
        self.counter.store(number, Ordering::Relaxed);
    }

    /// A number that is no other's since the start.
    pub(super) fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Which of so many books a session of this name is in.
    pub(super) fn book_of(&self, name: &[u8; 16], books: usize) -> usize {
        self.secret.digest_bytes(name).shard(books)
    }

    /// A number for the lease at a place: random bits, and among them the place, hidden by a hash of the others.
    pub(super) fn number(&self, place: u32) -> u64 {
        let counter = self.next();
        let random =
            self.secret.digest_bytes(&counter.to_le_bytes()).hash() >> (PLACE_BITS + 1) << PLACE_BITS;
        // Never zero, which is no lease's number.
        let random = random.max(1 << PLACE_BITS);
        random | (u64::from(place) ^ self.mask(random)) & PLACE_MASK
    }

    /// The place that a number hides, if it is a lease's.
    pub(super) fn place(&self, number: u64) -> u32 {
        let random = number & !PLACE_MASK;
        u32::try_from((number ^ self.mask(random)) & PLACE_MASK).unwrap_or(u32::MAX)
    }

    fn mask(&self, random: u64) -> u64 {
        self.secret.digest_bytes(&(!random).to_le_bytes()).high() >> 16
    }
}

/// A place is a number of so many bits: a book has at most a 64th of all leases, and often all of them.
const PLACE_BITS: u32 = 24;

const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
