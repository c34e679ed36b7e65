//! Which ids a trace has used. Their texts are not kept.

use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip128::{Hasher128, SipHasher13};

/// The ids used so far, as digests of 128 bits: with the most ids that are kept, the chance that any two of them are
/// taken for one is below 10⁻²³.
#[derive(Debug, Default)]
pub(super) struct Ids {
    digests: HashTable<Id>,
}

/// An id, or any other name, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u128);

impl Id {
    /// The digest of a text.
    pub(crate) fn of(text: &str) -> Id {
        let mut hasher = SipHasher13::new();
        hasher.write(text.as_bytes());
        Id(hasher.finish128().as_u128())
    }

    /// All of it.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Half of a digest is as good a hash as any.
    pub(super) fn hash(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.to_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl Ids {
    /// Notes an id; `false` when it was used before. Past the bound nothing more is noted, and only the ids that are
    /// known are found.
    pub(super) fn note(&mut self, id: Id) -> bool {
        if self.digests.len() < IDS_MAX {
            let entry = self.digests.entry(id.hash(), |known| *known == id, |known| known.hash());
            let is_new = matches!(entry, hashbrown::hash_table::Entry::Vacant(_));
            entry.or_insert(id);
            return is_new;
        }
        self.digests.find(id.hash(), |known| *known == id).is_none()
    }
}

/// Sixteen bytes each, and the table half empty at worst: a gigabyte, spent only by a trace of this many ids.
const IDS_MAX: usize = 32_000_000;

#[cfg(test)]
mod tests {
    use super::{Id, Ids};

    #[test]
    fn an_id_is_its_text() {
        let mut ids = Ids::default();
        for (id, is_new) in
            [("1", true), ("\"1\"", true), ("1", false), ("1.0", true), ("{}", true), ("{}", false)]
        {
            assert_eq!(ids.note(Id::of(id)), is_new, "{id}");
        }
    }
}
