//! Which ids a trace has used. Their texts are not kept.

use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip128::{Hasher128, SipHasher13};

/// The ids used so far, as digests of 128 bits: with the most ids that are kept, the chance that any two of them are
/// taken for one is below 10⁻²³.
#[derive(Debug, Default)]
pub(super) struct Ids {
    digests: HashTable<u128>,
}

impl Ids {
    /// Notes an id; `false` when it was used before. Past the bound nothing more is noted, and only the ids that are
    /// known are found.
    pub(super) fn note(&mut self, id: &str) -> bool {
        let mut hasher = SipHasher13::new();
        hasher.write(id.as_bytes());
        let digest = hasher.finish128().as_u128();
        if self.digests.len() < IDS_MAX {
            let entry = self.digests.entry(low(digest), |known| *known == digest, |known| low(*known));
            let is_new = matches!(entry, hashbrown::hash_table::Entry::Vacant(_));
            entry.or_insert(digest);
            return is_new;
        }
        self.digests.find(low(digest), |known| *known == digest).is_none()
    }
}

/// Half of a digest is as good a hash as any.
fn low(digest: u128) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = digest.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Sixteen bytes each, and the table half empty at worst: a gigabyte, spent only by a trace of this many ids.
const IDS_MAX: usize = 32_000_000;

#[cfg(test)]
mod tests {
    use super::Ids;

    #[test]
    fn an_id_is_its_text() {
        let mut ids = Ids::default();
        for (id, is_new) in
            [("1", true), ("\"1\"", true), ("1", false), ("1.0", true), ("{}", true), ("{}", false)]
        {
            assert_eq!(ids.note(id), is_new, "{id}");
        }
    }
}
