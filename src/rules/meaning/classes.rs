//! The terms that keys of one rule have, each once, with their numbers: equal overrides share an allowance.

use std::collections::HashMap;
use std::hash::Hash;

use crate::rules::problem::Wrong;
use crate::rules::rate_text::Written;

/// What one class of keys may use, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Terms {
    pub(super) rate: Written,
    /// Without it: the number of the rate.
    pub(super) burst: Option<u32>,
}

impl Terms {
    /// A burst of what has no limit says nothing.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        match (self.rate, self.burst) {
            (Written::Unlimited, Some(_)) => {
                Err(Wrong::new("`burst` where the rate is unlimited", "leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// The terms of a rule's overrides by number, from 1 on: 0 are those of the rule, or of its candidate. An override with
/// the terms of the rule has a number too: under the candidate it differs.
#[derive(Debug)]
pub(super) struct Classes<T> {
    terms: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Classes<T> {
    fn default() -> Classes<T> {
        Classes { terms: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Classes<T> {
    /// The number of these terms; `check` is asked about those that are new.
    pub(super) fn number<E>(&mut self, terms: T, check: impl FnOnce(&T) -> Result<(), E>) -> Result<u32, E> {
        if let Some(known) = self.numbers.get(&terms) {
            return Ok(*known);
        }
        check(&terms)?;
        self.terms.push(terms);
        // There are no more than rows and entries, both bounded far below.
        let number = u32::try_from(self.terms.len()).unwrap_or(u32::MAX);
        self.numbers.insert(terms, number);
        Ok(number)
    }

    /// The terms from number 1 on.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.terms.iter()
    }
}
