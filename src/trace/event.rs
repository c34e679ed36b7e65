//! What a trace says happened, whatever it was read from. Nothing is read or decided here.

use serde::Serialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::ids::Id;
use crate::clock::Timestamp;
use crate::engine::{Charge, Request, WorkOutcome};

/// One event of a trace, in order of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    /// The line it stands on, from 1.
    pub(crate) line: u64,
    /// When it is played.
    pub(crate) at: Timestamp,
    /// The time and the name of the event, as its decision repeats them.
    pub(crate) t: Said<'a>,
    pub(crate) id: Option<Said<'a>>,
    pub(crate) action: Action<'a>,
}

/// Whoever takes the events of a trace, one after the other.
pub(crate) trait Plays {
    /// Takes one. Its time is not before that of the last.
    ///
    /// # Errors
    /// It cannot be played; the trace ends there.
    fn play(&mut self, event: &Event<'_>) -> Result<(), Failure>;

    /// What happened that cannot wait for the end. Each is told once.
    fn take_news(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Lines played so far.
    fn lines(&self) -> u64;
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action<'a> {
    /// Judge a piece of work.
    Judge(Request<'a>, By<'a>),
    /// Charge after the fact, or refund this work.
    Charge(Charge<'a>, Option<Id>),
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
pub(crate) struct By<'a> {
    /// `None`: the session that needs no name.
    pub(crate) session: Option<&'a str>,
    pub(crate) id: Option<Id>,
}

/// How a process begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello<'a> {
    pub(crate) session: &'a str,
    pub(crate) pool: &'a str,
    /// How many requests it works on at once; 0: unknown.
    pub(crate) slots: u32,
}

/// What an application says of its pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signal<'a> {
    /// `None`: one of that pool that needs no name.
    pub(crate) session: Option<&'a str>,
    pub(crate) pool: &'a str,
    pub(crate) name: &'a str,
    pub(crate) permille: u16,
}

/// A JSON value that a decision repeats.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Said<'a> {
    /// As it was written.
    Written(&'a RawValue),
    Number(u64),
}
