//! Decoded replies.

use super::fault::Code;
use crate::terms::{Mode, NoteKind, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireReply<'a> {
    /// The reply to HELLO.
    Welcome {
        id: u64,
        /// The smaller version of both sides.
        version: u64,
        /// The name and version of the daemon, such as "tidegate/0.1.0".
        server: &'a str,
        /// A number that changes at every start of the daemon.
        boot: u64,
        /// The connection number of HELLO.
        connection: u64,
        /// The largest accepted payload, in bytes.
        frame_bytes_max: u64,
        mode: Mode,
    },
    /// The reply to ACQUIRE, HIT and PEEK.
    Decision(DecisionReply<'a>),
    /// The reply to the other requests.
    Done {
        id: u64,
        /// `false`: nothing changed.
        ok: bool,
    },
    /// A request, or the connection, was rejected.
    Error {
        /// The request's id, if it has one and it is known.
        id: Option<u64>,
        code: Code,
        /// A text for people.
        message: &'a str,
    },
    /// The daemon is draining: the client finishes, then reconnects.
    Goodbye { reason: &'a str },
}

/// A decision. Durations are microseconds, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionReply<'a> {
    pub id: u64,
    pub verdict: Verdict,
    pub rule: Option<&'a str>,
    /// The limit of the binding rule, in its unit.
    pub limit: Option<u64>,
    /// The time over which the limit is granted.
    pub window_us: Option<u64>,
    pub remaining: Option<u64>,
    /// The wait after which `remaining` would be larger.
    pub reset_us: Option<u64>,
    /// The wait after which the same request alone would pass; `None`: never.
    pub retry_us: Option<u64>,
    /// The lease to release, 1 or more.
    pub lease: Option<u64>,
    /// Additional facts about rules; empty is encoded as nil.
    pub notes: &'a [(NoteKind, &'a str)],
    /// Every limit that matched, if the request asked for them.
    pub all: Option<&'a [LimitEntry<'a>]>,
    /// The help text of the binding rule for refused callers.
    pub help: Option<&'a str>,
    /// Whether the binding rule is hidden from callers.
    pub hide: bool,
    /// The unit of the binding rule; `None`: requests.
    pub unit: Option<&'a str>,
    /// The rate of the rule that refuses, in the notation of rules: `5/min`.
    pub rate: Option<&'a str>,
    pub blocked: bool,
    /// The digest of the caller's key of the rule that refuses, in hexadecimal digits.
    pub digest: Option<&'a str>,
}

impl DecisionReply<'_> {
    /// Makes a decision without a binding rule.
    pub fn new(id: u64, verdict: Verdict) -> Self {
        DecisionReply { id, verdict, ..DecisionReply::default() }
    }
}

/// The level of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitEntry<'a> {
    pub rule: &'a str,
    pub limit: u64,
    pub window_us: u64,
    pub remaining: u64,
    pub reset_us: u64,
    pub refuses: bool,
    /// Of a node of a descriptor tree, the descriptors that it counts, as bits from the first on; of other rules 0.
    pub descriptors: u64,
}
