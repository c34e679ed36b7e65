//! Numbered quotas of a rule's overrides, each distinct one once: equal overrides share an allowance.

use std::collections::HashMap;
use std::hash::Hash;

use crate::rules::problem::ValueProblem;
use crate::rules::rate_text::WrittenRate;

/// The quota of one override, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OverrideQuota {
    pub(super) rate: WrittenRate,
    /// `None`: the number of the rate.
    pub(super) burst: Option<u32>,
}

impl OverrideQuota {
    /// Rejects a burst with an unlimited rate.
    pub(super) fn check(&self) -> Result<(), ValueProblem> {
        match (self.rate, self.burst) {
            (WrittenRate::Unlimited, Some(_)) => {
                Err(ValueProblem::new("`burst` where the rate is unlimited", "leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// The quotas of a rule's overrides, numbered from 1; 0 is the quota of the rule or its shadow rule. An
/// override equal to the rule is numbered too, as it differs from the shadow rule.
#[derive(Debug)]
pub(super) struct QuotaClasses<T> {
    terms: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for QuotaClasses<T> {
    fn default() -> QuotaClasses<T> {
        QuotaClasses { terms: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> QuotaClasses<T> {
    /// Returns the number of these terms; `check` validates new ones.
    pub(super) fn number<E>(&mut self, terms: T, check: impl FnOnce(&T) -> Result<(), E>) -> Result<u32, E> {
        if let Some(known) = self.numbers.get(&terms) {
            return Ok(*known);
        }
        check(&terms)?;
        self.terms.push(terms);
        // Rows and entries are bounded far below 2³².
        let number = u32::try_from(self.terms.len()).unwrap_or(u32::MAX);
        self.numbers.insert(terms, number);
        Ok(number)
    }

    /// Returns the terms from number 1 on.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.terms.iter()
    }
}
