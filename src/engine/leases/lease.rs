//! One lease: a request in progress, its ties, which are released with it, and its number: unguessable, and decoded to its slab
//! index in O(1).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::engine::digest::{Digest, HashKey, KeyHash, Salt};
use crate::engine::sync::{AtomicU64, Ordering};
use crate::limit::malloc_block_bytes;

/// A lease, also in a snapshot, whose format is the order of the fields that are not skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The number by which its holder names it.
    pub(in crate::engine) number: u64,
    pub(in crate::engine) ends_at: Timestamp,
    /// Its time to live, from each grant or renewal.
    #[serde(rename = "lasts_millis")]
    pub(super) ttl_millis: u32,
    /// The id of its request, on the connection `connection`.
    pub(super) request: u64,
    pub(super) connection: u32,
    /// Whether its priority is below the most important one.
    #[serde(rename = "is_other")]
    pub(in crate::engine) is_noncritical: bool,
    pub(in crate::engine) ties: Ties,
    pub(super) cost: LeaseCost,
    /// The number of its session in the table.
    #[serde(skip)]
    pub(super) member: u32,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct NewLease<'t> {
    /// When its work may start, from which its time to live counts.
    pub(in crate::engine) starts_at: Timestamp,
    pub(in crate::engine) ttl: Duration,
    pub(in crate::engine) request: u64,
    pub(in crate::engine) ties: &'t [LeaseResource],
    pub(in crate::engine) is_noncritical: bool,
    pub(in crate::engine) cost: LeaseCost,
}

/// The cost of a request that has a lease, for one refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseCost {
    /// Fingerprint of its request's domain and descriptors; 0: nothing to refund, or refunded already.
    pub fingerprint: u32,
    /// The cost in requests, where no unit is tied to the lease.
    pub cost: u32,
}

/// Decides whether a cost, in requests or by unit, covers a refund.
pub(in crate::engine) type Covers<'a> = &'a dyn Fn(LeaseCost, &[(u32, u32)]) -> bool;

/// A resource that is released, or may be refunded, with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseResource {
    /// A permit of a concurrency limit.
    Permit(Digest),
    /// A charge to a rule, refunded when the request ends well.
    Refund(LeaseCharge),
    /// The idempotency key of its request.
    IdempotencyKey(Digest),
    /// The name under which its cost can be refunded.
    RefundableCost(Digest),
    /// The cost in a unit, given by the unit's fingerprint.
    #[allow(missing_docs, reason = "said above")]
    Cost { unit: u32, cost: u32 },
}

/// All ties of one lease. The common cases, none and one permit, take no heap memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<LeaseResource>", into = "Vec<LeaseResource>")]
pub(in crate::engine) enum Ties {
    None,
    Permit(Digest),
    More(Box<[LeaseResource]>),
}

impl Ties {
    pub(super) fn from_slice(ties: &[LeaseResource]) -> Ties {
        match ties {
            [] => Ties::None,
            [LeaseResource::Permit(digest)] => Ties::Permit(*digest),
            more => Ties::More(more.into()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Ties::None
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Ties::None | Ties::Permit(_) => 0,
            Ties::More(more) => malloc_block_bytes(size_of_val(&**more)),
        }
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = LeaseResource> + '_ {
        let (one, more) = match self {
            Ties::None => (None, &[][..]),
            Ties::Permit(digest) => (Some(LeaseResource::Permit(*digest)), &[][..]),
            Ties::More(more) => (None, &**more),
        };
        one.into_iter().chain(more.iter().copied())
    }
}

/// A charge to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseCharge {
    /// The identity of the rule, stable over reloads.
    pub rule: u64,
    /// The digest of the state that was charged.
    pub digest: Digest,
    /// The salt mixed into the digest.
    pub salt: Salt,
    /// The index of the allowance.
    pub allowance: u32,
    /// The cost charged.
    pub cost: u32,
    /// Whether the second quota of an elastic rule was charged.
    pub is_elastic: bool,
    /// When it was charged. Absent in older snapshots.
    #[serde(default)]
    pub at: Option<Timestamp>,
}

impl From<Vec<LeaseResource>> for Ties {
    fn from(ties: Vec<LeaseResource>) -> Ties {
        Ties::from_slice(&ties)
    }
}

impl From<Ties> for Vec<LeaseResource> {
    fn from(ties: Ties) -> Vec<LeaseResource> {
        ties.iter().collect()
    }
}

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

/// Keeps 100 000 leases below 128 bytes each, including their places by session and by end, and the counter of the key that
/// holds the permit.
const _: () = assert!(size_of::<Option<Lease>>() <= 72);
