//! One lease: a piece of work in progress, and what is tied to it.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::engine::digest::{Digest, Salt};
use crate::engine::ledger::LEASE_BYTES;
use crate::limit::block_bytes;

/// One piece of work in progress.
#[derive(Debug)]
pub(super) struct Lease {
    /// What its holder knows it by.
    pub(super) number: u64,
    pub(super) ends_at: Timestamp,
    /// The id of the request that it was granted to, on the connection of this count.
    pub(super) request: u64,
    pub(super) ties: Ties,
    pub(super) cost: LeaseCost,
    pub(super) connection: u32,
    /// How long it lasts from when it is granted or renewed.
    pub(super) lasts_millis: u32,
    /// Its session's number.
    pub(super) member: u32,
    pub(super) in_session: Link,
    pub(super) on_spoke: Link,
    pub(super) spoke: u16,
    /// Whether it counts as other than the most important work.
    pub(super) is_other: bool,
}

/// A lease to be granted.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct NewLease<'t> {
    pub(in crate::engine) lasts: Duration,
    /// The id of its request.
    pub(in crate::engine) request: u64,
    pub(in crate::engine) ties: &'t [Tie],
    pub(in crate::engine) is_other: bool,
    pub(in crate::engine) cost: LeaseCost,
}

/// What work cost the rules that count it, for one refund to name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCost {
    /// Of the domain and the descriptors of its request; 0: there is nothing to refund, or no more.
    pub print: u32,
    /// In requests, where no unit is tied to it.
    pub cost: u32,
}

/// Whether what work cost, in requests or by unit, covers a refund.
pub(in crate::engine) type Covers<'a> = &'a dyn Fn(LeaseCost, &[(u32, u32)]) -> bool;

/// The neighbours in a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) before: u32,
    pub(super) after: u32,
}

/// What ends, or may be given back, with a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// A place under a concurrency limit.
    Place(Digest),
    /// What a rule was charged, to be given back when the work ends well.
    Refund(Refund),
    /// The name by which its request is known.
    Repeat(Digest),
    /// The name by which its cost can be refunded.
    Spent(Digest),
    /// What it cost in a unit, of which this is the print.
    #[allow(missing_docs, reason = "said above")]
    Cost { unit: u32, cost: u32 },
}

/// All that is tied to one lease. Mostly nothing, or one place: those take no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Ties {
    None,
    Place(Digest),
    More(Box<[Tie]>),
}

impl Ties {
    pub(super) fn of(ties: &[Tie]) -> Ties {
        match ties {
            [] => Ties::None,
            [Tie::Place(digest)] => Ties::Place(*digest),
            more => Ties::More(more.into()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Ties::None
    }

    /// What they take of the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Ties::None | Ties::Place(_) => 0,
            Ties::More(more) => block_bytes(size_of_val(&**more)),
        }
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = Tie> + '_ {
        let (one, more) = match self {
            Ties::None => (None, &[][..]),
            Ties::Place(digest) => (Some(Tie::Place(*digest)), &[][..]),
            Ties::More(more) => (None, &**more),
        };
        one.into_iter().chain(more.iter().copied())
    }
}

/// What a rule was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refund {
    /// What the rule is known by, also after a reload.
    pub rule: u64,
    /// The digest of the state that was charged.
    pub digest: Digest,
    /// What was mixed into the digest.
    pub salt: Salt,
    /// The number of the allowance.
    pub allowance: u32,
    /// How much.
    pub cost: u32,
    /// It was charged to what is beyond the quota.
    pub is_beyond: bool,
}

/// The end of a chain.
pub(super) const NONE: u32 = u32::MAX;

impl Link {
    pub(super) const NONE: Link = Link { before: NONE, after: NONE };
}

/// So a hundred thousand of them take less than 128 bytes each, with the counter of the key that holds a place.
const _: () = assert!(size_of::<Option<Lease>>() <= LEASE_BYTES);
