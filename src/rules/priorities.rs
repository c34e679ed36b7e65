//! Priorities of a domain, and their assignment to requests that have none.

use super::{Condition, Position};

/// Priorities from the highest to the lowest.
#[derive(Clone, Debug, Default)]
pub struct Priorities {
    /// Their names; empty if the domain has none.
    pub names: Vec<Box<str>>,
    /// In file order; the first match counts. A request without a match has the last of `names`.
    pub prioritize: Vec<Prioritize>,
}

/// One entry of `prioritize`.
#[derive(Clone, Debug)]
pub struct Prioritize {
    /// Its position in the files.
    pub position: Position,
    /// Conditions that must all match.
    pub conditions: Vec<Condition>,
    /// The index of its priority in [`Priorities::names`].
    pub priority: usize,
}
