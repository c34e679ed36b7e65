//! Overrides of a rule's limit: exact keys from a table first, then conditions in order.

use super::{Condition, Rows};

/// The overrides of one rule. They select the allowance of its [`Limit`](super::Limit) for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Conditions and allowance numbers in file order; the first match counts.
    pub list: Vec<(Vec<Condition>, u32)>,
    /// Exact keys, transformed like those of requests, and their allowance numbers.
    pub rows: Rows,
    /// The table of the rows, as the rule names it.
    pub file: Option<Box<str>>,
}
