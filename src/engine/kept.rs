//! What a restart keeps, as plain data: copied out while work goes on, and put back before any begins. It knows neither
//! bytes nor files.
//!
//! All times are of the engine's own timeline. Whoever puts something back goes on with that timeline, so that the time
//! which has passed meanwhile passes over everything.

mod copy;
mod heritage;
mod put_back;

use super::decision::{NoteKind, Verdict};
use super::digest::Digest;
use crate::clock::Timestamp;

pub(super) use copy::copy_pieces;
pub(super) use heritage::{Heritage, Inherited, fingerprint};
pub(super) use put_back::FIRST_RULING;
pub use put_back::{PuttingBack, Unfit};

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
    Bucket(KeptKey, u64),
    /// A fixed window: when its key entered it, and what it counts.
    Window(KeptKey, Timestamp, u32),
    /// A sliding window: when its newest bucket was first counted in, and the counts, the newest first.
    SlidingWindow(KeptKey, Timestamp, Vec<u32>),
    /// A fixed window of a file that says when it ends instead: what it counts.
    OldWindow(KeptKey, u32),
    /// A sliding window of a file that says when its newest bucket starts, in nanoseconds of Unix time, and the counts.
    OldSlidingWindow(KeptKey, u64, Vec<u32>),
    /// A sliding log: times with their units, the oldest first.
    Log(KeptKey, Vec<(u64, u32)>),
    /// A key of places that many hosts share, of which work is in progress, and the number of its limit.
    Places(KeptKey, u64),
    /// A key that is refused until then.
    Block(KeptKey, Timestamp),
    /// A key in the soft part of its allowance: since when, and until when if nothing else comes.
    Soft(KeptKey, Timestamp, Timestamp),
    /// The grant of a request that has a name.
    Repeat(Box<KeptGrant>),
    /// What a named grant or charge cost, until it is refunded.
    Spent(Box<KeptSpent>),
    /// A session.
    Session(Box<KeptSession>),
    /// A lease of the session before it.
    Lease(Box<KeptLease>),
}

/// What a state is known by: a keyed digest, never a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptKey(pub [u8; 16]);

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

/// A limit as a reply shows it: limit, window and reset in microseconds, remaining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLevel {
    /// The limit.
    pub limit: u64,
    /// Its window in microseconds.
    pub window_micros: u64,
    /// What is left.
    pub remaining: u64,
    /// Until more is left, in microseconds.
    pub reset_micros: u64,
}

/// A grant that may be asked for again.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptGrant {
    /// The name of its request.
    pub name: KeptKey,
    /// What it asks.
    pub asks: u64,
    /// When it was given.
    pub at: Timestamp,
    /// Allow or wait.
    pub verdict: Verdict,
    /// How long, in microseconds.
    pub wait_micros: u64,
    /// Its lease.
    pub lease: Option<u64>,
    /// The limit that binds: the rule's number and name.
    pub binding: Option<(u32, Box<str>, KeptLevel)>,
    /// The entry of a list that exempted it.
    pub listed: Option<Box<str>>,
    /// What was worth knowing, by numbers of rules.
    pub notes: Vec<(NoteKind, u32)>,
    /// All limits, by numbers of rules.
    pub all: Vec<(u32, KeptLevel)>,
    /// Whether the numbers are of the rules in force.
    pub is_current: bool,
}

/// What a named grant or charge cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSpent {
    /// The name.
    pub name: KeptKey,
    /// When it was charged.
    pub at: Timestamp,
    /// Tells what was asked.
    pub print: u32,
    /// Costs by the print of their units.
    pub costs: Vec<(u32, u32)>,
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
    pub ties: Vec<KeptTie>,
}

/// What ends, or may be given back, with a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptTie {
    /// A place under a concurrency limit.
    Place(KeptKey),
    /// What a rule was charged.
    Refund {
        /// The rule's identity.
        rule: u64,
        /// The state that was charged.
        key: KeptKey,
        /// What was mixed into the key.
        salt: u64,
        /// The number of the allowance.
        allowance: u32,
        /// How much.
        cost: u32,
        /// It was charged to what is beyond the quota.
        is_beyond: bool,
    },
    /// The name of its request.
    Repeat(KeptKey),
    /// The name by which its cost can be refunded.
    Spent(KeptKey),
    /// What it cost in a unit, of which this is the print.
    #[allow(missing_docs, reason = "said above")]
    Cost { unit: u32, cost: u32 },
    /// What tells its request, and the cost in requests.
    #[allow(missing_docs, reason = "said above")]
    Print { print: u32, cost: u32 },
}

impl KeptKey {
    pub(super) fn of(digest: &Digest) -> KeptKey {
        KeptKey(digest.to_bytes())
    }

    pub(super) fn digest(self) -> Digest {
        Digest::of_bytes(self.0)
    }
}
