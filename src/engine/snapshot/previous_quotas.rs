//! The previous quotas of buckets that outlive their rule, after a restart or a reload. A rule that returns
//! with the same quotas reuses its buckets; with other quotas the buckets are converted as on a change.

use std::collections::{HashMap, HashSet};

use super::StoredRule;
use crate::engine::digest::KeyHash;
use crate::engine::rule_set::{CompiledDomain, CompiledRule, CompiledRuleSet};
use crate::limit::Quota;
use crate::rules::shed::ShedPart;
use crate::rules::{Limit, OverTreatment, Overrides, Rule};

#[derive(Debug, Default)]
pub(in crate::engine) struct PreviousQuotas {
    /// The fingerprint of the names of all rules.
    pub(in crate::engine) names: Option<u64>,
    rules: HashMap<u64, StoredRule>,
}

impl PreviousQuotas {
    /// Adds the rules of a replaced rule set that `after` does not have: their buckets outlive them.
    pub(in crate::engine) fn add_removed(
        &mut self,
        before: &CompiledRuleSet,
        after: &CompiledRuleSet,
        hash: &KeyHash,
    ) {
        let after: HashSet<u64> =
            after.each_rule().map(|(_, compiled_rule)| compiled_rule.identity).collect();
        let removed =
            before.each_rule().filter(|(_, compiled_rule)| !after.contains(&compiled_rule.identity));
        removed.for_each(|(rule, compiled_rule)| self.add(stored_rule(rule, compiled_rule, hash)));
    }

    /// Adds a removed rule. At the maximum an arbitrary other one is dropped, as all are equally likely to
    /// return.
    pub(super) fn add(&mut self, rule: StoredRule) {
        if self.rules.len() >= RULES_MAX
            && !self.rules.contains_key(&rule.identity)
            && let Some(other) = self.rules.keys().next().copied()
        {
            self.rules.remove(&other);
        }
        self.rules.insert(rule.identity, rule);
    }

    /// All previous quotas, with those of the rules in force.
    pub(super) fn with(&self, in_force: &CompiledRuleSet, hash: &KeyHash) -> Vec<StoredRule> {
        let mut all = self.rules.clone();
        all.extend(
            in_force.each_rule().map(|(rule, compiled_rule)| {
                (compiled_rule.identity, stored_rule(rule, compiled_rule, hash))
            }),
        );
        all.into_values().collect()
    }

    /// Returns whether a rule's previous quotas equal those with a fingerprint, and the mark on the buckets.
    pub(in crate::engine) fn find(&self, rule: u64, fingerprint: impl FnOnce() -> u64) -> Option<(bool, u8)> {
        let (known, mark) = self.rules.get(&rule)?.quotas;
        Some((known == fingerprint(), mark))
    }
}

/// A fingerprint of a limit's quotas, or zero without buckets, as other states are compared by their digest.
pub(in crate::engine) fn fingerprint(hash: &KeyHash, limit: &Limit, overrides: Option<&Overrides>) -> u64 {
    let is_bucket = |quota: &Quota| matches!(quota, Quota::TokenBucket(_) | Quota::LeakyBucket(_));
    let has_buckets = limit.allowances.iter().flatten().any(|allowance| {
        is_bucket(&allowance.quota)
            || matches!(&allowance.over, OverTreatment::Elastic(second) if is_bucket(second))
    });
    if !has_buckets {
        return 0;
    }
    hash.digest_bytes(format!("{limit:?} {overrides:?}").as_bytes()).hash()
}

fn stored_rule(rule: &Rule, compiled_rule: &CompiledRule, hash: &KeyHash) -> StoredRule {
    let fingerprint = fingerprint(hash, &rule.limit, rule.overrides.as_deref());
    StoredRule { identity: compiled_rule.identity, quotas: (fingerprint, compiled_rule.generation) }
}

/// A fingerprint of the names and the order of all rules.
pub(in crate::engine) fn fingerprint_names(rule_set: &CompiledRuleSet, hash: &KeyHash) -> u64 {
    let mut names = Vec::new();
    for CompiledDomain { domain, .. } in &rule_set.domains {
        let rules = domain.rules().iter().map(|rule| &*rule.name);
        let lists = domain.lists().iter().map(|entry| &*entry.name);
        let sheds: Vec<_> =
            domain.sheds().iter().flat_map(|shed| ShedPart::ALL.map(|part| shed.rule_name(part))).collect();
        for name in rules.chain(lists).chain(sheds.iter().map(|name| &**name)).chain([domain.name(), ""]) {
            names.extend_from_slice(&name.len().to_le_bytes());
            names.extend_from_slice(name.as_bytes());
        }
    }
    hash.digest_bytes(&names).hash()
}

/// More rules than a host has.
const RULES_MAX: usize = 1 << 16;
