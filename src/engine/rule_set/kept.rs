//! The facts about rules that snapshots keep, for those in force and those removed.

use std::collections::HashSet;

use super::{CompiledDomain, CompiledRule, CompiledRuleSet};
use crate::engine::digest::KeyHash;
use crate::engine::snapshot::{StoredRule, fingerprint};
use crate::rules::Rule;
use crate::rules::shed::ShedPart;

impl CompiledRuleSet {
    /// A fingerprint of the names and the order of all rules.
    pub(in crate::engine) fn fingerprint(&self, hash: &KeyHash) -> u64 {
        let mut names = Vec::new();
        for CompiledDomain { domain, .. } in &self.domains {
            let rules = domain.rules().iter().map(|rule| &*rule.name);
            let lists = domain.lists().iter().map(|entry| &*entry.name);
            let sheds: Vec<_> = domain
                .sheds()
                .iter()
                .flat_map(|shed| ShedPart::ALL.map(|part| shed.rule_name(part)))
                .collect();
            for name in rules.chain(lists).chain(sheds.iter().map(|name| &**name)).chain([domain.name(), ""])
            {
                names.extend_from_slice(&name.len().to_le_bytes());
                names.extend_from_slice(name.as_bytes());
            }
        }
        hash.digest_bytes(&names).hash()
    }

    /// Returns the quotas of each rule, for its buckets in a snapshot.
    pub(in crate::engine) fn kept(&self, hash: &KeyHash) -> Vec<StoredRule> {
        self.each_rule().map(|(rule, terms)| kept(rule, terms, hash)).collect()
    }

    /// Returns those of rules that `after` does not have: their buckets outlive them.
    pub(in crate::engine) fn left_behind(&self, after: &CompiledRuleSet, hash: &KeyHash) -> Vec<StoredRule> {
        let after: HashSet<u64> = after.each_rule().map(|(_, terms)| terms.identity).collect();
        let left = self.each_rule().filter(|(_, terms)| !after.contains(&terms.identity));
        left.map(|(rule, terms)| kept(rule, terms, hash)).collect()
    }
}

fn kept(rule: &Rule, terms: &CompiledRule, hash: &KeyHash) -> StoredRule {
    let fingerprint = fingerprint(hash, &rule.limit, rule.overrides.as_deref());
    StoredRule { identity: terms.identity, quotas: (fingerprint, terms.generation) }
}
