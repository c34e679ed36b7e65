//! Lease numbers: unguessable, and each decodes to its slab index in O(1).

use crate::engine::digest::{HashKey, KeyHash};
use crate::engine::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub(in crate::engine) struct LeaseNumbers {
    secret: KeyHash,
    counter: AtomicU64,
}

impl LeaseNumbers {
    pub(super) fn new(hash_key: &HashKey) -> LeaseNumbers {
        LeaseNumbers { secret: hash_key.for_purpose("leases"), counter: AtomicU64::new(0) }
    }

    pub(in crate::engine) fn begin_at(&self, number: u64) {
        self.counter.store(number, Ordering::Relaxed);
    }

    /// Returns a count that is unique since the start.
    pub(super) fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns which of the tables holds the session of this name.
    pub(super) fn table_of(&self, name: &[u8; 16], tables: usize) -> usize {
        self.secret.digest_bytes(name).shard(tables)
    }

    /// Makes the number of the lease at a slab index: random bits, and the index masked by their hash.
    pub(super) fn encode_number(&self, index: u32) -> u64 {
        let counter = self.next();
        let random =
            self.secret.digest_bytes(&counter.to_le_bytes()).hash() >> (PLACE_BITS + 1) << PLACE_BITS;
        let random = random.max(1 << PLACE_BITS);
        random | (u64::from(index) ^ self.mask(random)) & PLACE_MASK
    }

    /// Decodes the slab index from a lease number; arbitrary for any other number.
    pub(super) fn decode_index(&self, number: u64) -> u32 {
        let random = number & !PLACE_MASK;
        u32::try_from((number ^ self.mask(random)) & PLACE_MASK).unwrap_or(u32::MAX)
    }

    fn mask(&self, random: u64) -> u64 {
        self.secret.digest_bytes(&(!random).to_le_bytes()).high() >> 16
    }
}

/// Bits of a slab index: a table holds a 64th of all leases on average, and in the worst case all of them.
const PLACE_BITS: u32 = 24;

const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
