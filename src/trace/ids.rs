//! The ids that a trace has used. Only digests are stored.

use std::collections::HashSet;
use std::hash::Hasher;

use foldhash::fast::FixedState;
use siphasher::sip128::{Hasher128, SipHasher13};

/// The used ids as 128-bit digests; with `IDS_MAX` ids, the probability of a collision is below 10⁻²³.
#[derive(Debug, Default)]
pub(super) struct Ids {
    digests: HashSet<IdDigest, FixedState>,
}

/// An id, or any other name, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdDigest(u128);

impl IdDigest {
    pub(crate) fn of(text: &str) -> IdDigest {
        let mut hasher = SipHasher13::new();
        hasher.write(text.as_bytes());
        IdDigest(hasher.finish128().as_u128())
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl Ids {
    /// Records an id; `false` if it was used before. At the bound, new ids are no longer recorded.
    pub(super) fn note(&mut self, id: IdDigest) -> bool {
        if self.digests.len() < IDS_MAX { self.digests.insert(id) } else { !self.digests.contains(&id) }
    }
}

/// 16 bytes each in a table that may be half empty: about 1 GB.
const IDS_MAX: usize = 32_000_000;

#[cfg(test)]
mod tests {
    use super::{IdDigest, Ids};

    #[test]
    fn an_id_is_its_text() {
        let mut ids = Ids::default();
        for (id, is_new) in
            [("1", true), ("\"1\"", true), ("1", false), ("1.0", true), ("{}", true), ("{}", false)]
        {
            assert_eq!(ids.note(IdDigest::of(id)), is_new, "{id}");
        }
    }
}
