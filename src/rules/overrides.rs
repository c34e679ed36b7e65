//! Limits of some keys alone: exact keys from a file first, then conditions in order.

use super::{Condition, Rows};

/// The overrides of one rule. They say which allowance of its [`Limit`](super::Limit) a request has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// In the order of the file, each with the number of its allowance: the first whose conditions hold.
    pub list: Vec<(Vec<Condition>, u32)>,
    /// Exact keys, as they are counted by, each with the number of its allowance.
    pub rows: Rows,
    /// The table that the rows came from, as the rule names it.
    pub file: Option<Box<str>>,
}
