//! Finds the known prefixes or suffixes of a text: one look-up for each length that they have.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

/// Items by prefix or suffix, which have few different lengths.
#[derive(Debug)]
pub(super) struct Affixes<I>(BTreeMap<usize, HashMap<Box<str>, Vec<I>, FixedState>>);

impl<I> Default for Affixes<I> {
    fn default() -> Self {
        Affixes(BTreeMap::new())
    }
}

impl<I> Affixes<I> {
    pub(super) fn push(&mut self, affix: &str, item: I) {
        self.0.entry(affix.len()).or_default().entry(affix.into()).or_default().push(item);
    }

    /// Returns the items of each known prefix of a text, the shortest first.
    pub(super) fn at_start(&self, text: &str) -> impl Iterator<Item = &[I]> {
        let of_length = self.0.range(..=text.len());
        of_length.filter_map(|(length, items)| Some(items.get(text.get(..*length)?)?.as_slice()))
    }

    /// Returns the items of each known suffix of a text, the shortest first.
    pub(super) fn at_end(&self, text: &str) -> impl Iterator<Item = &[I]> {
        let of_length = self.0.range(..=text.len());
        let end = |length: &usize| text.get(text.len() - length..);
        of_length.filter_map(move |(length, items)| Some(items.get(end(length)?)?.as_slice()))
    }
}
