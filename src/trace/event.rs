//! Events of a trace, independent of its format.

use serde::Serialize;
use serde_json::value::RawValue;

use super::failure::TraceFailure;
use super::ids::IdDigest;
use crate::clock::Timestamp;
use crate::engine::{Charge, Request, WorkOutcome};

/// One event of a trace; events are in order of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceEvent<'a> {
    /// Its line, from 1.
    pub(crate) line: u64,
    /// Its virtual time.
    pub(crate) at: Timestamp,
    /// Time and id of the event as its decision repeats them.
    pub(crate) t: TraceText<'a>,
    pub(crate) id: Option<TraceText<'a>>,
    pub(crate) action: Action<'a>,
}

/// Consumes the events of a trace one after the other.
pub(crate) trait EventConsumer {
    /// Plays one event, whose time is at or after that of the previous one.
    ///
    /// # Errors
    /// The event cannot be played; the trace ends there.
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
    Signal(SignalEvent<'a>),
    /// Open a session.
    Hello(HelloEvent<'a>),
    /// Close a session.
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct HelloEvent<'a> {
    pub(crate) session: &'a str,
    pub(crate) pool: &'a str,
    /// The requests that the process works on at once; 0: unknown.
    pub(crate) slots: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalEvent<'a> {
    /// `None`: the unnamed session of that pool.
    pub(crate) session: Option<&'a str>,
    pub(crate) pool: &'a str,
    pub(crate) name: &'a str,
    pub(crate) permille: u16,
}

/// A JSON value that a decision repeats.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum TraceText<'a> {
    /// Verbatim from the trace.
    Written(&'a RawValue),
    Number(u64),
}
