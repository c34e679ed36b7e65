//! Events of a trace, independent of its format.

use std::hash::Hasher;
use std::io;

use serde::Serialize;
use serde_json::value::RawValue;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::clock::Timestamp;
use crate::engine::{Charge, Request, WorkOutcome};
use crate::terms::without_number;

/// One event of a trace; events are in order of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceEvent<'a> {
    /// Its line, from 1.
    pub(crate) line: u64,
    pub(crate) at: Timestamp,
    /// Time and id of the event as its decision repeats them.
    pub(crate) t: TraceText<'a>,
    pub(crate) id: Option<TraceText<'a>>,
    pub(crate) action: Action<'a>,
}

/// Consumes the events of a trace one after the other.
pub(crate) trait EventConsumer {
    /// Plays one event, whose time is at or after that of the previous one. At an error the trace ends.
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure>;

    /// Returns messages that should be shown before the end, each once.
    fn take_news(&mut self) -> Vec<String> {
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action<'a> {
    Judge(Request<'a>, LeaseOwner<'a>),
    /// Charge after the fact, or refund the lease of this id.
    Charge(Charge<'a>, Option<IdDigest>),
    Release(IdDigest, WorkOutcome),
    Renew(IdDigest),
    /// Record a signal of a pool; without a session, by the unnamed session of that pool.
    Signal {
        session: Option<&'a str>,
        pool: &'a str,
        name: &'a str,
        permille: u16,
    },
    /// Open a session. `slots` are the requests that the process works on at once; 0: unknown.
    Hello {
        session: &'a str,
        pool: &'a str,
        slots: u32,
    },
    Bye(&'a str),
    /// Reload the rules from this path, relative to the trace.
    Reload(&'a str),
}

/// The session of a request, and the id by which its lease is ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseOwner<'a> {
    /// `None`: the unnamed session of the default pool.
    pub(crate) session: Option<&'a str>,
    pub(crate) id: Option<IdDigest>,
}

/// A JSON value that a decision repeats.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum TraceText<'a> {
    /// Verbatim from the trace.
    Written(&'a RawValue),
    Number(u64),
}

/// An id, or any other name, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdDigest(u128);

impl IdDigest {
    pub(crate) fn of(text: &str) -> IdDigest {
        let mut hasher = SipHasher13::new();
        hasher.write(text.as_bytes());
        IdDigest(hasher.finish128().as_u128())
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceFailure {
    #[error("line {number}: {wrong}")]
    Line { number: u64, wrong: String },
    #[error("line {number}: {}", without_number(source))]
    Read { number: u64, source: io::Error },
    #[error("line {number}: something is wrong here, and its text is not shown: another user owns the trace")]
    Withheld { number: u64 },
    #[error("{}", without_number(.0))]
    Write(#[from] io::Error),
}

impl TraceFailure {
    /// Removes the text of the trace from the error, for traces that must not be quoted.
    pub(super) fn withheld(self) -> TraceFailure {
        match self {
            TraceFailure::Line { number, .. } => TraceFailure::Withheld { number },
            other => other,
        }
    }
}
