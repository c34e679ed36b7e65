//! Finds all known prefixes of a text without testing each.
//!
//! Prefixes are sorted, each with its parent: the longest other prefix that it starts with. The known
//! prefixes of a text are the last one that does not sort after it, and ancestors of that one, because
//! everything that sorts between a prefix and a text that starts with it also starts with it. So one binary
//! search and one walk up find them.

#[derive(Debug)]
pub(super) struct Prefixes<I> {
    /// The common start of all prefixes.
    common: Box<[u8]>,
    /// The next bytes of each prefix as a number in sort order. A search over these rarely needs the nodes.
    heads: Vec<u64>,
    nodes: Vec<PrefixNode<I>>,
}

#[derive(Debug)]
struct PrefixNode<I> {
    /// The bytes after the common start.
    rest: Box<[u8]>,
    parent: Option<usize>,
    items: Vec<I>,
}

impl<I> Prefixes<I> {
    /// Builds it from prefixes in any order; items of equal prefixes share a node.
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
            let node = PrefixNode { rest: rest.into(), parent: path.last().copied(), items: vec![item] };
            path.push(prefixes.nodes.len());
            prefixes.heads.push(head(rest));
            prefixes.nodes.push(node);
        }
        prefixes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Passes the items of the known prefixes of a text to `is_enough`, longest first, until it returns true.
    #[inline]
    #[allow(clippy::indexing_slicing, reason = "the numbers are those of nodes: a lost one would admit")]
    pub(super) fn any(&self, text: &[u8], mut is_enough: impl FnMut(&[I]) -> bool) -> bool {
        // Empty pieces are not compared, as in [`Glob`](super::Glob).
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
        // Rare: the text starts with the same eight bytes.
        if self.heads.get(after) == Some(&head) {
            let alike = self.heads[after..].partition_point(|known| *known == head);
            let nodes = &self.nodes[after..after + alike];
            after += nodes.partition_point(|node| node.rest.is_empty() || *node.rest <= *rest);
        }
        after.checked_sub(1)
    }
}

/// Returns the length of the common start of two texts.
fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Returns the first eight bytes, big-endian. Zeros pad shorter texts, which keeps the order except for ties.
#[inline]
fn head(text: &[u8]) -> u64 {
    match text.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => (0..HEAD_BYTES).fold(0, |head, at| head << 8 | u64::from(text.get(at).copied().unwrap_or(0))),
    }
}

const HEAD_BYTES: usize = 8;
