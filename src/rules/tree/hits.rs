//! The nodes that one request hits: one for each descriptor, without those that others replace.

use arrayvec::ArrayVec;

use super::{Hit, Tree};

/// What one request hits, in the order of the rules.
pub type NodeHits = ArrayVec<NodeHit, DESCRIPTORS_MAX>;

/// A node that one request hits, by one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHit {
    /// The node, and what it counts by.
    pub hit: Hit,
    /// How many descriptors of the request hit it by this key: each costs what the request costs.
    pub times: u32,
    /// The first of them, from 0.
    pub descriptor: u8,
}

/// A descriptor's pairs and the node that limits it.
type Found<'d, 'a> = (Hit, &'d [(&'a str, &'a str)]);

impl Tree {
    /// Finds what the descriptors of one request hit, at most 8 of them, and replaces what `hits` held by that. All of
    /// it is found before anything is replaced: limits that replace each other are both gone, and one that is replaced
    /// still replaces. An unlimited one is never gone.
    pub fn select_hits<'d, 'a: 'd>(
        &self,
        descriptors: impl Iterator<Item = &'d [(&'a str, &'a str)]>,
        hits: &mut NodeHits,
    ) {
        hits.clear();
        if self.is_empty() {
            return;
        }
        let mut found: ArrayVec<(u8, Found<'d, 'a>), DESCRIPTORS_MAX> = ArrayVec::new();
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
        // Stable: of one rule's keys the first descriptor's stays first.
        hits.sort_by_key(|hit| hit.hit.rule);
    }

    fn is_replaced(&self, hit: Hit, found: &[(u8, Found<'_, '_>)]) -> bool {
        let Some(limiting) = self.limiting(hit.rule) else { return false };
        let Some(name) = limiting.name.filter(|_| !limiting.unlimited) else { return false };
        let replacing = found.iter().filter_map(|(_, (hit, _))| self.limiting(hit.rule));
        replacing.into_iter().any(|limiting| limiting.replaces.contains(&name))
    }

    /// Whether two hits are on one counter.
    fn is_same(&self, (hit, descriptor): &Found<'_, '_>, (other, theirs): &Found<'_, '_>) -> bool {
        hit.rule == other.rule && self.key_values(*hit, descriptor).eq(self.key_values(*other, theirs))
    }
}

/// As many as one request carries.
pub const DESCRIPTORS_MAX: usize = 8;
