//! The terms that keys of one rule have, each once, with their numbers: equal overrides share an allowance.

use std::collections::HashMap;

use crate::rules::rate_text::Written;

/// What one class of keys may use, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Terms {
    pub(super) rate: Written,
    /// Without it: the number of the rate.
    pub(super) burst: Option<u32>,
}

/// All terms of one rule by number; 0 are its own.
#[derive(Debug)]
pub(super) struct Classes {
    terms: Vec<Terms>,
    numbers: HashMap<Terms, u32>,
}

impl Classes {
    pub(super) fn new(own: Terms) -> Classes {
        // An override that says what the rule says is that of the rule.
        Classes { terms: vec![own], numbers: HashMap::from([(own, 0)]) }
    }

    /// The number of these terms; `check` is asked once about those that are new.
    pub(super) fn number<E>(
        &mut self,
        terms: Terms,
        check: impl FnOnce(&Terms) -> Result<(), E>,
    ) -> Result<u32, E> {
        if let Some(known) = self.numbers.get(&terms) {
            return Ok(*known);
        }
        check(&terms)?;
        // There are no more overrides than rows and entries, both bounded far below.
        let number = u32::try_from(self.terms.len()).unwrap_or(u32::MAX);
        self.terms.push(terms);
        self.numbers.insert(terms, number);
        Ok(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Terms> {
        self.terms.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.terms.len()
    }
}
