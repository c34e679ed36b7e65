//! Counts the distinct callers of each rule by fingerprints of their keys. No key text is stored.

use std::sync::Arc;

use hashbrown::HashTable;

use super::places::RuleIndexes;
use crate::rules::Domain;

/// The callers of all rules, over every reload.
#[derive(Debug, Default)]
pub(crate) struct ReplayCallers {
    places: RuleIndexes,
    seen: Vec<SeenCaller>,
    fingerprints: usize,
}

#[derive(Debug, Default)]
struct SeenCaller {
    fingerprints: HashTable<u64>,
    /// Set when a new fingerprint was dropped for lack of room.
    more: bool,
}

impl ReplayCallers {
    /// Records the numbering of the rules in force. A rule keeps its callers by name.
    pub(super) fn number(&mut self, rules: &[Arc<Domain>]) {
        self.places.number(rules);
        self.seen.resize_with(self.places.len(), SeenCaller::default);
    }

    /// Records the keys that a decision checked, as rule number and fingerprint.
    pub(super) fn note(&mut self, domain: &str, keys: impl Iterator<Item = (u32, u64)>) {
        let places = self.places.of(domain);
        for (rule, fingerprint) in keys {
            let place = usize::try_from(rule).ok().and_then(|rule| places.get(rule));
            let Some(seen) = place.and_then(|place| self.seen.get_mut(*place)) else { continue };
            let has_room = self.fingerprints < FINGERPRINTS_MAX;
            self.fingerprints += usize::from(seen.note(fingerprint, has_room));
        }
    }

    /// Returns the number of distinct callers of a rule, and whether some were not counted for lack of room.
    pub(crate) fn count(&self, domain: &str, rule: &str) -> Option<(u64, bool)> {
        let seen = self.seen.get(self.places.find(domain, rule)?)?;
        Some((u64::try_from(seen.fingerprints.len()).unwrap_or(u64::MAX), seen.more))
    }

    /// Formats the count for a table: `1 204`, or `1 204+` if some callers were not counted.
    pub(super) fn shown(&self, domain: &str, rule: &str) -> String {
        let Some((count, more)) = self.count(domain, rule) else { return String::new() };
        let count = super::table::count(count);
        if more { count + "+" } else { count }
    }
}

impl SeenCaller {
    /// Records a fingerprint; returns whether it was added.
    fn note(&mut self, fingerprint: u64, has_room: bool) -> bool {
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
}

/// Fingerprints over all rules: 9 bytes each in tables that may be half empty, about 300 MB.
const FINGERPRINTS_MAX: usize = 16_000_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{ReplayCallers, SeenCaller};
    use crate::rules::read_text;

    fn rules(names: &[&str]) -> Vec<Arc<crate::rules::Domain>> {
        let limits: Vec<_> =
            names.iter().map(|name| format!("  - {{name: {name}, key: [user], rate: 1/s}}\n")).collect();
        read_text("api.yaml", &format!("domain: api\nlimits:\n{}", limits.concat())).domains
    }

    #[test]
    fn a_rule_keeps_its_callers_when_it_gets_another_number() {
        let mut callers = ReplayCallers::default();
        callers.number(&rules(&["a", "b"]));
        callers.note("api", [(0, 1), (1, 1), (1, 2), (1, 2), (7, 1)].into_iter());
        callers.note("other", [(0, 9)].into_iter());
        callers.number(&rules(&["b", "c"]));
        callers.note("api", [(0, 2), (0, 3), (1, 3)].into_iter());
        let shown = ["a", "b", "c", "d"].map(|rule| callers.shown("api", rule));
        assert_eq!(shown, ["1", "3", "1", ""]);
    }

    #[test]
    fn without_room_the_known_are_known_and_the_rest_is_said_to_be_more() {
        let mut seen = SeenCaller::default();
        assert!(seen.note(1, true) && !seen.note(1, true) && !seen.note(1, false));
        assert!(!seen.more);
        assert!(!seen.note(2, false) && seen.more);
        assert_eq!(seen.fingerprints.len(), 1);
    }
}
