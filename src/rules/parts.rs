//! Finds all known texts that occur anywhere in a value, in one pass over the value.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

#[derive(Debug)]
pub(super) struct Parts<I> {
    automaton: AhoCorasick,
    /// The items of each text, by its number in the automaton.
    items: Vec<Vec<I>>,
}

impl<I> Parts<I> {
    /// Builds it from texts in any order, none of them empty; items of equal texts are found together. `None` without texts.
    pub(super) fn new(known: Vec<(&str, I)>) -> Option<Parts<I>> {
        if known.is_empty() {
            return None;
        }
        let mut numbers = HashMap::new();
        let (mut texts, mut items) = (Vec::new(), Vec::<Vec<I>>::new());
        for (text, item) in known {
            let number = *numbers.entry(text).or_insert(items.len());
            match items.get_mut(number) {
                Some(items) => items.push(item),
                None => {
                    texts.push(text);
                    items.push(vec![item]);
                }
            }
        }
        // Other kinds take more memory, or are slow for many texts.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        #[allow(clippy::expect_used, reason = "without the items of a text requests would be admitted")]
        let automaton = AhoCorasick::builder().kind(kind).build(&texts).expect("fewer than 2³¹ short texts");
        Some(Parts { automaton, items })
    }

    /// Passes the items of each text in a value to `is_enough`, once each, until it returns true.
    #[allow(clippy::indexing_slicing, reason = "each text has its items: a lost one would admit")]
    pub(super) fn any(&self, value: &str, is_enough: &mut impl FnMut(&[I]) -> bool) -> bool {
        let mut seen = vec![false; self.items.len()];
        self.automaton.find_overlapping_iter(value).any(|found| {
            let text = found.pattern().as_usize();
            !std::mem::replace(&mut seen[text], true) && is_enough(&self.items[text])
        })
    }
}
