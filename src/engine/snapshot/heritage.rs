//! The previous quotas of buckets that outlive their rule, after a restart or a reload. A rule that returns
//! with the same quotas reuses its buckets; with other quotas the buckets are converted as on a change.

use std::collections::HashMap;

use super::StoredRule;
use crate::engine::digest::KeyHash;
use crate::limit::Quota;
use crate::rules::{Limit, OverTreatment, Overrides};

#[derive(Debug, Default)]
pub(in crate::engine) struct Heritage {
    /// The fingerprint of the names of all rules.
    pub(in crate::engine) names: Option<u64>,
    rules: HashMap<u64, StoredRule>,
}

impl Heritage {
    /// Adds a removed rule. At the maximum an arbitrary other one is dropped, as all are equally likely to
    /// return.
    pub(in crate::engine) fn add(&mut self, rule: StoredRule) {
        if self.rules.len() >= RULES_MAX
            && !self.rules.contains_key(&rule.identity)
            && let Some(other) = self.rules.keys().next().copied()
        {
            self.rules.remove(&other);
        }
        self.rules.insert(rule.identity, rule);
    }

    /// All previous quotas, with those of the rules in force.
    pub(super) fn with(&self, in_force: Vec<StoredRule>) -> Vec<StoredRule> {
        let mut all = self.rules.clone();
        all.extend(in_force.into_iter().map(|rule| (rule.identity, rule)));
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

/// More rules than a host has.
const RULES_MAX: usize = 1 << 16;
