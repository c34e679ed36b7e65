//! Limits of some keys alone: exact keys from a file first, then conditions in order.

use super::Condition;

/// The overrides of one rule. They say which allowance of its [`Limit`](super::Limit) a request has.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// In the order of the file, each with the number of its allowance: the first whose conditions hold.
    pub list: Vec<(Vec<Condition>, u32)>,
}
