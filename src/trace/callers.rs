//! Counts distinct callers by fingerprints of their keys. No key text is stored.

use hashbrown::HashTable;

/// The fingerprints of callers, or of other values.
#[derive(Debug, Default)]
pub(crate) struct CallerSet {
    fingerprints: HashTable<u64>,
    /// Set when a new fingerprint was dropped for lack of room.
    more: bool,
}

impl CallerSet {
    /// Records a fingerprint; returns whether it was added.
    pub(crate) fn note(&mut self, fingerprint: u64, has_room: bool) -> bool {
        // A fingerprint is a keyed hash already.
        if !has_room {
            self.more |= self.fingerprints.find(fingerprint, |known| *known == fingerprint).is_none();
            return false;
        }
        let before = self.fingerprints.len();
        self.fingerprints
            .entry(fingerprint, |known| *known == fingerprint, |known| *known)
            .or_insert(fingerprint);
        self.fingerprints.len() > before
    }

    /// Returns the number of fingerprints, and whether some were not counted for lack of room.
    pub(crate) fn count(&self) -> (u64, bool) {
        (self.fingerprints.len() as u64, self.more)
    }

    /// Formats the count for a table: `1 204`, or `1 204+` if some were not counted.
    pub(super) fn shown(&self) -> String {
        let (count, more) = self.count();
        super::table::count(count) + if more { "+" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::CallerSet;

    #[test]
    fn without_room_the_known_are_known_and_the_rest_is_said_to_be_more() {
        let mut seen = CallerSet::default();
        assert!(seen.note(1, true) && !seen.note(1, true) && !seen.note(1, false));
        assert!(!seen.more);
        assert!(!seen.note(2, false) && seen.more);
        assert_eq!(seen.count(), (1, true));
    }
}
