//! The children of one node: by their text, then as patterns in file order. It looks at none that cannot fit.

use arrayvec::ArrayString;
use hashbrown::HashTable;

use super::{Node, node_at};
use crate::rules::Glob;
use crate::rules::names::hash;
use crate::rules::prefixes::Prefixes;

/// The children of one node.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// All of them, also those with stars: a request may carry the very text of one.
    exact: HashTable<u32>,
    patterns: Option<Box<Patterns>>,
}

/// Children with a star, in file order.
#[derive(Debug)]
struct Patterns {
    globs: Vec<(Glob, u32)>,
    /// By what they start with.
    starts: Prefixes<usize>,
}

/// What brought an entry to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The text of the node.
    Text,
    /// The node's pattern.
    Pattern,
}

impl Level {
    /// The level of these nodes.
    pub(super) fn new(nodes: &[Node], numbers: &[u32]) -> Level {
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
        Level { exact, patterns }
    }

    /// The child for an entry.
    #[inline]
    pub(super) fn child<'n>(&self, nodes: &'n [Node], key: &str, value: &str) -> Option<(&'n Node, By)> {
        if self.exact.is_empty() {
            return None;
        }
        let mut text = ArrayString::<TEXT_BYTES_MAX>::new();
        let fits = [key, "_", value].iter().all(|part| text.try_push_str(part).is_ok());
        let by_value = if fits {
            self.by_value(nodes, &text)
        } else {
            // Longer than any request can carry.
            self.by_value(nodes, &format!("{key}_{value}"))
        };
        by_value.or_else(|| Some((self.by_text(nodes, key)?, By::Text)))
    }

    fn by_value<'n>(&self, nodes: &'n [Node], text: &str) -> Option<(&'n Node, By)> {
        if let Some(node) = self.by_text(nodes, text) {
            return Some((node, By::Text));
        }
        let number = self.patterns.as_ref()?.first(text)?;
        Some((node_at(nodes, number), By::Pattern))
    }

    #[inline]
    fn by_text<'n>(&self, nodes: &'n [Node], text: &str) -> Option<&'n Node> {
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

    /// The node of the first in file order that fits. Those that start alike are looked at one after the other.
    fn first(&self, text: &str) -> Option<u32> {
        #[allow(clippy::indexing_slicing, reason = "the places are those of the patterns")]
        let pattern = |place: usize| &self.globs[place];
        let mut first: Option<usize> = None;
        self.starts.any(text.as_bytes(), |places| {
            let sooner = places.iter().copied().take_while(|place| first.is_none_or(|first| *place < first));
            first = { sooner }.find(|place| pattern(*place).0.matches(text)).or(first);
            first == Some(0)
        });
        Some(pattern(first?).1)
    }
}

/// The longest key and value that the socket carries, and what stands between them.
const TEXT_BYTES_MAX: usize = 64 + 1 + 1_024;
