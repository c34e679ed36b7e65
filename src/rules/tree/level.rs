//! The children of one node: found by text, then by the first matching pattern, looked up by prefix.

use arrayvec::ArrayString;
use hashbrown::HashTable;

use super::{TreeNode, node_at};
use crate::rules::Glob;
use crate::rules::names::hash;
use crate::rules::prefixes::Prefixes;

#[derive(Debug, Default)]
pub(super) struct TreeLevel {
    /// All children, including patterns, as a request may carry the text of a pattern.
    exact: HashTable<u32>,
    patterns: Option<Box<Patterns>>,
}

/// Children with a star, in file order.
#[derive(Debug)]
struct Patterns {
    globs: Vec<(Glob, u32)>,
    /// Indexes by prefix.
    starts: Prefixes<usize>,
}

/// The way in which an entry matched its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchedBy {
    Text,
    Pattern,
}

impl TreeLevel {
    pub(super) fn new(nodes: &[TreeNode], numbers: &[u32]) -> TreeLevel {
        let text = |number: u32| &*node_at(nodes, number).text;
        let mut exact = HashTable::with_capacity(numbers.len());
        let mut globs = Vec::new();
        for number in numbers {
            let own = text(*number);
            exact
                .entry(hash(own), |known| text(*known) == own, |known| hash(text(*known)))
                .or_insert(*number);
            if own.contains('*') {
                globs.push((Glob::without_escapes(own), *number));
            }
        }
        let patterns = (!globs.is_empty()).then(|| Box::new(Patterns::new(globs)));
        TreeLevel { exact, patterns }
    }

    #[inline]
    pub(super) fn child<'n>(
        &self,
        nodes: &'n [TreeNode],
        key: &str,
        value: &str,
    ) -> Option<(&'n TreeNode, MatchedBy)> {
        if self.exact.is_empty() {
            return None;
        }
        let mut text = ArrayString::<TEXT_BYTES_MAX>::new();
        let fits = [key, "_", value].iter().all(|part| text.try_push_str(part).is_ok());
        let by_value = if fits {
            self.by_value(nodes, &text)
        } else {
            // Longer than the wire protocol allows.
            self.by_value(nodes, &format!("{key}_{value}"))
        };
        by_value.or_else(|| Some((self.by_text(nodes, key)?, MatchedBy::Text)))
    }

    fn by_value<'n>(&self, nodes: &'n [TreeNode], text: &str) -> Option<(&'n TreeNode, MatchedBy)> {
        if let Some(node) = self.by_text(nodes, text) {
            return Some((node, MatchedBy::Text));
        }
        let number = self.patterns.as_ref()?.first(text)?;
        Some((node_at(nodes, number), MatchedBy::Pattern))
    }

    #[inline]
    fn by_text<'n>(&self, nodes: &'n [TreeNode], text: &str) -> Option<&'n TreeNode> {
        let is = |number: &u32| *node_at(nodes, *number).text == *text;
        Some(node_at(nodes, *self.exact.find(hash(text), is)?))
    }
}

impl Patterns {
    fn new(globs: Vec<(Glob, u32)>) -> Patterns {
        let start = |glob: &Glob| glob.ends().map_or(Vec::new(), |(start, ..)| start.as_bytes().to_vec());
        let starts = Prefixes::new(globs.iter().map(|(glob, _)| start(glob)).zip(0..).collect());
        Patterns { globs, starts }
    }

    /// Returns the first pattern in file order that matches. Equal prefixes are tested in turn.
    fn first(&self, text: &str) -> Option<u32> {
        #[allow(clippy::indexing_slicing, reason = "the places are those of the patterns")]
        let pattern = |index: usize| &self.globs[index];
        let mut first: Option<usize> = None;
        self.starts.any(text.as_bytes(), |indices| {
            let sooner = indices.iter().copied().take_while(|index| first.is_none_or(|first| *index < first));
            first = { sooner }.find(|index| pattern(*index).0.matches(text)).or(first);
            first == Some(0)
        });
        Some(pattern(first?).1)
    }
}

/// The longest key and value on the wire, and the `_` between them.
const TEXT_BYTES_MAX: usize = 64 + 1 + 1_024;
