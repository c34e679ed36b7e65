//! States of limits whose numbers are in the requests, by keyed digest, in memory alone.

use std::hash::{BuildHasher, Hash, RandomState};

/// The states, in groups of 16, which the digest of a key chooses. In a full group the state that will be fresh first gives way; a
/// fresh one loses nothing.
#[derive(Debug)]
pub(super) struct DigestTable<const WORDS: usize> {
    hasher: RandomState,
    groups: Vec<[DigestEntry<WORDS>; GROUP]>,
    pub(super) evictions: u64,
}

/// A digest and a state. One of zeros is fresh.
type DigestEntry<const WORDS: usize> = (u64, [u64; WORDS]);

impl<const WORDS: usize> Default for DigestTable<WORDS> {
    fn default() -> DigestTable<WORDS> {
        // The kernel provides a page of zeros when it is first used.
        let groups = vec![[(0, [0; WORDS]); GROUP]; KEYS_MAX / GROUP];
        DigestTable { hasher: RandomState::new(), groups, evictions: 0 }
    }
}

impl<const WORDS: usize> DigestTable<WORDS> {
    /// Calls `change` with the state of a key, `None` if it has none, and keeps the state that it returns, if any. `until_fresh`
    /// returns the time until a state is fresh.
    pub(super) fn update<R>(
        &mut self,
        key: &impl Hash,
        until_fresh: impl Fn(&[u64; WORDS]) -> u64,
        change: impl FnOnce(Option<[u64; WORDS]>) -> (Option<[u64; WORDS]>, R),
    ) -> R {
        let digest = self.hasher.hash_one(key);
        let of_other = |(of, state): &DigestEntry<WORDS>| (*of != digest).then(|| until_fresh(state));
        let index = usize::try_from(digest % self.groups.len().max(1) as u64).unwrap_or_default();
        let group = self.groups.get_mut(index).into_iter().flatten();
        let Some(entry) = group.min_by_key(|entry| of_other(entry)) else {
            unreachable!("a group has entries")
        };
        let other = of_other(entry);
        let (after, result) = change(other.is_none().then_some(entry.1));
        if let Some(after) = after {
            self.evictions += u64::from(other > Some(0));
            *entry = (digest, after);
        }
        result
    }
}

/// A state and its digest have 16 to 32 bytes: 4 to 8 MiB.
pub(super) const KEYS_MAX: usize = 1 << 18;

/// As in the tables of the engine.
const GROUP: usize = 16;
