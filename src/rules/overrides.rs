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

impl Overrides {
    /// The number of the allowance of a request: that of its key's row, else of the first entry whose conditions
    /// hold, else 0. `value` is asked for the value of an attribute.
    pub fn number_of<'v>(
        &self,
        key: impl Iterator<Item = &'v str> + Clone,
        value: impl Fn(&str) -> Option<&'v str>,
    ) -> u32 {
        if let Some(number) = self.rows.number_of(key) {
            return number;
        }
        let holds = |conditions: &[Condition]| {
            conditions.iter().all(|condition| condition.holds(value(&condition.attribute)))
        };
        self.list.iter().find(|(conditions, _)| holds(conditions)).map_or(0, |(_, number)| *number)
    }
}
