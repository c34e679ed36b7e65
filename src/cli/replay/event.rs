//! What a trace says happened, whatever it was read from. Nothing is read or decided here.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::engine::{Charge, Request};

/// One event of a trace, in order of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event<'a> {
    /// The line it stands on, from 1.
    pub(super) line: u64,
    /// When it is played.
    pub(super) at: Timestamp,
    /// The time and the name of the event, as its decision repeats them.
    pub(super) t: Said<'a>,
    pub(super) id: Option<Said<'a>>,
    pub(super) action: Action<'a>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'a> {
    /// Judge a piece of work.
    Judge(Request<'a>),
    /// Charge after the fact.
    Charge(Charge<'a>),
    /// Put the rules at this path in force, relative to the trace.
    Reload(&'a str),
    /// Let time pass: what else a line may say has no effect without leases and pools.
    Pass,
}

/// A JSON value that a decision repeats.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Said<'a> {
    /// As it was written.
    Written(&'a RawValue),
    Number(u64),
}
