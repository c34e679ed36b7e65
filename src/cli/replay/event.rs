//! What a trace says happened, whatever it was read from. Nothing is read or decided here.

use serde::Serialize;
use serde_json::value::RawValue;

use super::ids::Id;
use crate::clock::Timestamp;
use crate::engine::{Charge, Request, WorkOutcome};

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
    Judge(Request<'a>, By<'a>),
    /// Charge after the fact.
    Charge(Charge<'a>),
    /// End a piece of work.
    Release(Id, WorkOutcome),
    /// Start the time of a piece of work again.
    Renew(Id),
    /// Take a reading of an application about its pool.
    Signal(Signal<'a>),
    /// A process begins.
    Hello(Hello<'a>),
    /// A process ends.
    Bye(&'a str),
    /// Put the rules at this path in force, relative to the trace.
    Reload(&'a str),
}

/// Who asks for a piece of work, and by what name it is ended.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cli) struct By<'a> {
    /// `None`: the session that needs no name.
    pub(in crate::cli) session: Option<&'a str>,
    pub(in crate::cli) id: Option<Id>,
}

/// How a process begins.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Hello<'a> {
    pub(in crate::cli) session: &'a str,
    pub(in crate::cli) pool: &'a str,
    /// How many requests it works on at once; 0: unknown.
    pub(in crate::cli) slots: u32,
}

/// What an application says of its pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal<'a> {
    /// `None`: one of that pool that needs no name.
    pub(super) session: Option<&'a str>,
    pub(super) pool: &'a str,
    pub(super) name: &'a str,
    pub(super) permille: u16,
}

/// A JSON value that a decision repeats.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Said<'a> {
    /// As it was written.
    Written(&'a RawValue),
    Number(u64),
}
