//! The priorities of a domain, and which of them a request has that does not say.

use super::{Condition, Position};

/// From the most important to the least.
#[derive(Clone, Debug, Default)]
pub struct Priorities {
    /// Their names; empty: the domain knows none.
    pub names: Vec<Box<str>>,
    /// In file order: the first that matches counts. What none matches has the last of `names`.
    pub prioritize: Vec<Prioritize>,
}

/// One entry of `prioritize`.
#[derive(Clone, Debug)]
pub struct Prioritize {
    /// Where it is written.
    pub position: Position,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// Where in [`Priorities::names`] its priority stands.
    pub priority: usize,
}
