//! What a restart keeps, as plain data: copied out while work goes on, and put back before any begins. It knows neither
//! bytes nor files.
//!
//! All times are of the engine's own timeline. Whoever puts something back goes on with that timeline, so that the time
//! which has passed meanwhile passes over everything.

mod copy;
mod heritage;
mod put_back;

use crate::clock::Timestamp;

pub(super) use copy::copy_pieces;
pub(super) use heritage::{Heritage, Inherited, fingerprint};
pub(super) use put_back::FIRST_RULING;
pub use put_back::{PuttingBack, Unfit};

pub use super::digest::{Digest, Salt};
pub use super::leases::{LeaseCost, Refund, Tie};
pub use super::repeats::{Grant, Granted};
pub use super::spent::Spent;
pub use crate::limit::Level;

/// One thing that a restart keeps.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    /// The names of the rules in force and their order, as a fingerprint. Comes before all grants.
    Rules(u64),
    /// Under which quotas a rule's buckets were left.
    Rule(KeptRule),
    /// A pool.
    Pool(Box<KeptPool>),
    /// A token bucket or a leaky one.
    Bucket(Digest, u64),
    /// A fixed window: when its key entered it, and what it counts.
    Window(Digest, Timestamp, u32),
    /// A sliding window: when its newest bucket was first counted in, and the counts, the newest first.
    SlidingWindow(Digest, Timestamp, Vec<u32>),
    /// A sliding log: times with their units, the oldest first.
    Log(Digest, Vec<(u64, u32)>),
    /// A key of places that many hosts share, of which work is in progress, and the number of its limit.
    Places(Digest, u64),
    /// A key that is refused until then.
    Block(Digest, Timestamp),
    /// A key in the soft part of its allowance: since when, and until when if nothing else comes.
    Soft(Digest, Timestamp, Timestamp),
    /// The grant of a request that has a name.
    Repeat(Digest, Granted),
    /// What a named grant or charge cost, until it is refunded.
    Spent(Digest, Spent),
    /// A session.
    Session(Box<KeptSession>),
    /// A lease of the session before it.
    Lease(Box<KeptLease>),
}

/// Under which quotas a rule's buckets were left: a fingerprint of them, and the mark that is on the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRule {
    /// What the rule is known by.
    pub identity: u64,
    /// The fingerprint of its quotas, and the mark on its buckets.
    pub quotas: (u64, u8),
}

/// A pool: where its slow law stands. Whether it brakes is found anew.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptPool {
    /// Its name.
    pub name: Box<str>,
    /// The numbers of the law: good, bad, after, full, leak.
    pub law: [f64; 5],
    /// s.
    pub severity: f64,
    /// For how long nothing had been known, in nanoseconds.
    pub silent_nanos: u64,
    /// When it last moved.
    pub stepped: Timestamp,
}

/// A session that has a name. Others end with their connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSession {
    /// Its name.
    pub name: [u8; 16],
    /// Whose it is.
    pub user: u32,
    /// Its process, if it is known.
    pub pid: Option<u32>,
    /// The pool that it works in.
    pub pool: Box<str>,
    /// How many requests it works on at once; 0: unknown.
    pub slots: u32,
}

/// A piece of work in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLease {
    /// What its holder knows it by.
    pub number: u64,
    /// When it ends by itself.
    pub ends_at: Timestamp,
    /// How long it lasts from when it is renewed.
    pub lasts_millis: u32,
    /// The id of its request.
    pub request: u64,
    /// The connection of its request, by the client's count.
    pub connection: u32,
    /// Whether it is other than the most important work.
    pub is_other: bool,
    /// What is tied to it.
    pub ties: Vec<Tie>,
    /// What a refund of it can name.
    pub cost: LeaseCost,
}
