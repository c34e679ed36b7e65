//! The nodes that one request hits: one per descriptor, without replaced ones.

use arrayvec::ArrayVec;

use super::{Hit, Tree};

/// The hits of one request, in the order of the rules.
pub type NodeHits = ArrayVec<NodeHit, DESCRIPTORS_MAX>;

/// A node hit by one request, with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHit {
    /// The node, and the entries that count by pattern.
    pub hit: Hit,
    /// The number of descriptors with this node and key; each costs as much as the request.
    pub times: u32,
    /// The index of the first of them, from 0.
    pub descriptor: u8,
}

type FoundNode<'d, 'a> = (Hit, &'d [(&'a str, &'a str)]);

impl Tree {
    /// Finds the hits of a request's descriptors, at most [`DESCRIPTORS_MAX`], and stores them in `hits`.
    /// Replacement applies after the search: two limits that replace each other both drop out, and a replaced
    /// limit still replaces others. Unlimited ones are never replaced.
    pub fn select_hits<'d, 'a: 'd>(
        &self,
        descriptors: impl Iterator<Item = &'d [(&'a str, &'a str)]>,
        hits: &mut NodeHits,
    ) {
        hits.clear();
        if self.is_empty() {
            return;
        }
        let mut found: ArrayVec<(u8, FoundNode<'d, 'a>), DESCRIPTORS_MAX> = ArrayVec::new();
        for (number, descriptor) in (0u8..).zip(descriptors.take(DESCRIPTORS_MAX)) {
            if let Some(hit) = self.find(descriptor) {
                found.push((number, (hit, descriptor)));
            }
        }
        for (place, (number, one)) in found.iter().enumerate() {
            if self.is_replaced(one.0, &found) {
                continue;
            }
            let before = found.get(..place).unwrap_or_default();
            match before.iter().find(|(_, other)| self.is_same(one, other)) {
                Some((first, _)) => {
                    let same = hits.iter_mut().find(|hit| hit.descriptor == *first);
                    same.into_iter().for_each(|hit| hit.times += 1);
                }
                None => hits.push(NodeHit { hit: one.0, times: 1, descriptor: *number }),
            }
        }
        // Stable sort: of the keys of one rule, that of the first descriptor stays first.
        hits.sort_by_key(|hit| hit.hit.rule);
    }

    fn is_replaced(&self, hit: Hit, found: &[(u8, FoundNode<'_, '_>)]) -> bool {
        let Some(limiting) = self.limiting(hit.rule) else { return false };
        let Some(name) = limiting.name.filter(|_| !limiting.unlimited) else { return false };
        let replacing = found.iter().filter_map(|(_, (hit, _))| self.limiting(hit.rule));
        replacing.into_iter().any(|limiting| limiting.replaces.contains(&name))
    }

    /// Whether two hits share one state.
    fn is_same(&self, (hit, descriptor): &FoundNode<'_, '_>, (other, theirs): &FoundNode<'_, '_>) -> bool {
        hit.rule == other.rule && self.key_values(*hit, descriptor).eq(self.key_values(*other, theirs))
    }
}

/// The maximum of one request.
pub const DESCRIPTORS_MAX: usize = 8;
