//! The rule set in force, with what the engine adds to each rule: the hash of its keys, its counters' slot, its mode.

use super::counters::{Slot, Slots};
use super::digest::{HashKey, KeyHash};
use crate::clock::Micros;
use crate::limit::{Quota, Scale};
use crate::rules::{Domain, Mode, RuleSet};

/// A rule set in force.
#[derive(Debug, Default)]
pub(super) struct Ruling {
    pub(super) rules: RuleSet,
    /// By domain and rule, as in `rules`.
    pub(super) terms: Vec<Vec<Terms>>,
    /// Nothing is judged at all.
    pub(super) disabled: bool,
}

/// What the engine knows of a rule.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) key_hash: KeyHash,
    /// That of the rule's quota.
    pub(super) scale: Scale,
    pub(super) slot: Slot,
    /// Refusals are carried out.
    pub(super) enforced: bool,
}

impl Ruling {
    pub(super) fn new(rules: RuleSet, hash_key: &HashKey, mode: Mode, slots: &mut Slots) -> Ruling {
        let terms = rules.domains().iter().map(|domain| {
            let terms = domain.rules().iter().map(|rule| Terms {
                key_hash: hash_key.of_rule(domain.name(), &rule.name),
                scale: match rule.limit.quota() {
                    Some(Quota::TokenBucket(quota)) => quota.scale(),
                    _ => Scale::NANOS,
                },
                slot: slots.of(domain.name(), &rule.name),
                enforced: rule.mode.max(mode) == Mode::Enforce,
            });
            terms.collect()
        });
        Ruling { terms: terms.collect(), rules, disabled: mode == Mode::Disabled }
    }

    /// The rules of a domain and the terms of each.
    #[inline]
    pub(super) fn find(&self, domain: &str) -> Option<(&Domain, &[Terms])> {
        let found = self.rules.find(domain)?;
        Some((self.rules.domains().get(found)?, self.terms.get(found)?))
    }

    /// The shortest time in which a key of any rule fills.
    pub(super) fn window_min(&self) -> Micros {
        let rules = self.rules.domains().iter().flat_map(Domain::rules);
        rules.filter_map(|rule| rule.limit.quota().map(Quota::window)).min().unwrap_or_default()
    }
}
