//! Finds every known prefix of a text, however many are known, without looking at each.
//!
//! They are kept sorted, each with its parent, the longest of the others that it starts with. All known prefixes of a
//! text are ancestors of the last one that does not sort after it, or that one itself: what sorts between a prefix and
//! a text that starts with it starts with it too. So one search and one walk up find them.

/// Known prefixes, and what belongs to each.
#[derive(Debug)]
pub(super) struct Prefixes<I> {
    /// What all of them start with.
    common: Box<[u8]>,
    /// The first bytes of each behind that, as a number that sorts as they do: one search over these tells nearly all
    /// apart without leaving the list.
    heads: Vec<u64>,
    nodes: Vec<Node<I>>,
}

#[derive(Debug)]
struct Node<I> {
    /// Behind what all start with.
    rest: Box<[u8]>,
    parent: Option<usize>,
    items: Vec<I>,
}

impl<I> Prefixes<I> {
    /// From prefixes in any order; what has the same one stands together.
    pub(super) fn new(mut known: Vec<(Vec<u8>, I)>) -> Prefixes<I> {
        known.sort_by(|(one, _), (other, _)| one.cmp(other));
        let common: Box<[u8]> = match (known.first(), known.last()) {
            (Some((first, _)), Some((last, _))) => {
                first.get(..shared(first, last)).unwrap_or_default().into()
            }
            _ => Box::default(),
        };
        let mut prefixes = Prefixes { common, heads: Vec::new(), nodes: Vec::new() };
        let mut path: Vec<usize> = Vec::new();
        for (prefix, item) in known {
            let rest = prefix.get(prefixes.common.len()..).unwrap_or_default();
            if let Some(last) = prefixes.nodes.last_mut()
                && *last.rest == *rest
            {
                last.items.push(item);
                continue;
            }
            while let Some(above) = path.last().and_then(|above| prefixes.nodes.get(*above))
                && !rest.starts_with(&above.rest)
            {
                path.pop();
            }
            let node = Node { rest: rest.into(), parent: path.last().copied(), items: vec![item] };
            path.push(prefixes.nodes.len());
            prefixes.heads.push(head(rest));
            prefixes.nodes.push(node);
        }
        prefixes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Hands over what belongs to the known prefixes of a text, the longest first, until it is told that this is
    /// enough; whether it was.
    #[inline]
    #[allow(
        clippy::indexing_slicing,
        reason = "the numbers are those of nodes: what is not found would admit"
    )]
    pub(super) fn any(&self, text: &[u8], mut is_enough: impl FnMut(&[I]) -> bool) -> bool {
        // Nothing empty is compared here, as in [`Glob`](super::Glob).
        let rest = match &*self.common {
            [] => text,
            common => match text.strip_prefix(common) {
                Some(rest) => rest,
                None => return false,
            },
        };
        let mut next = self.last_not_after(rest);
        let Some(nearest) = next else { return false };
        let shared = shared(&self.nodes[nearest].rest, rest);
        while let Some(node) = next {
            let node = &self.nodes[node];
            if node.rest.len() <= shared && is_enough(&node.items) {
                return true;
            }
            next = node.parent;
        }
        false
    }

    #[allow(clippy::indexing_slicing, reason = "there are as many heads as nodes")]
    fn last_not_after(&self, rest: &[u8]) -> Option<usize> {
        let head = head(rest);
        let mut after = self.heads.partition_point(|known| *known < head);
        // Seldom: the text starts with the same eight bytes.
        if self.heads.get(after) == Some(&head) {
            let alike = self.heads[after..].partition_point(|known| *known == head);
            let nodes = &self.nodes[after..after + alike];
            after += nodes.partition_point(|node| node.rest.is_empty() || *node.rest <= *rest);
        }
        after.checked_sub(1)
    }
}

/// How many bytes two texts have in common at the start.
fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The first eight bytes, the first being the highest. A shorter text has zeros behind it, and none sorts before it
/// that it sorts before.
#[inline]
fn head(text: &[u8]) -> u64 {
    match text.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => (0..HEAD_BYTES).fold(0, |head, at| head << 8 | u64::from(text.get(at).copied().unwrap_or(0))),
    }
}

const HEAD_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Prefixes;

    /// Every known prefix of the text, the longest first.
    fn found(prefixes: &Prefixes<usize>, text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        let is_enough = prefixes.any(text, |items| {
            found.extend_from_slice(items);
            false
        });
        assert!(!is_enough);
        found
    }

    /// Few letters, zeros among them, and lengths around the eight bytes of a head.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let letter = || prop::sample::select(&[0, b'a', b'b', 255][..]);
        prop_oneof![
            prop::collection::vec(letter(), 0..12),
            prop::collection::vec(letter(), 0..3).prop_map(|end| [&b"aaaaaaa"[..], &end].concat()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn all_prefixes_are_found(known in prop::collection::vec(text(), 0..20), texts in prop::collection::vec(text(), 1..9)) {
            let prefixes = Prefixes::new(known.iter().cloned().zip(0..).collect());
            for text in texts {
                let mut expected: Vec<_> = (0..known.len()).filter(|at| text.starts_with(&known[*at])).collect();
                expected.sort_by_key(|at| std::cmp::Reverse(known[*at].len()));
                prop_assert_eq!(found(&prefixes, &text), expected, "{:?} among {:?}", text, known);
            }
        }
    }
}
