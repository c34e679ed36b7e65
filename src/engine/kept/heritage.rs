//! Under which quotas buckets were left that outlive their rule: over a restart, or since a reload took it away. A rule that
//! comes back with the same quotas goes on with them; under any other its buckets are taken over, as when it changes.

use std::collections::HashMap;

use super::KeptRule;
use crate::engine::digest::KeyHash;
use crate::limit::Quota;
use crate::rules::{Limit, Over, Overrides};

/// What is remembered of rules.
#[derive(Debug, Default)]
pub(in crate::engine) struct Heritage {
    /// The fingerprint of the names of all rules.
    pub(in crate::engine) names: Option<u64>,
    rules: HashMap<u64, KeptRule>,
}

/// Whether the quotas are the same, and the mark that is on the buckets.
pub(in crate::engine) type Inherited = (bool, u8);

impl Heritage {
    /// A rule is in force no more. Where there are too many, some other is forgotten: it is as likely as any not to come
    /// back.
    pub(in crate::engine) fn add(&mut self, rule: KeptRule) {
        if self.rules.len() >= RULES_MAX
            && !self.rules.contains_key(&rule.identity)
            && let Some(other) = self.rules.keys().next().copied()
        {
            self.rules.remove(&other);
        }
        self.rules.insert(rule.identity, rule);
    }

    /// All that is remembered, together with the rules in force.
    pub(super) fn with(&self, in_force: Vec<KeptRule>) -> Vec<KeptRule> {
        let mut all = self.rules.clone();
        all.extend(in_force.into_iter().map(|rule| (rule.identity, rule)));
        all.into_values().collect()
    }

    /// The quotas that a rule's buckets were left under.
    pub(in crate::engine) fn find(&self, rule: u64, fingerprint: impl FnOnce() -> u64) -> Option<Inherited> {
        let (known, mark) = self.rules.get(&rule)?.quotas;
        Some((known == fingerprint(), mark))
    }
}

/// Tells a limit's buckets from those under other quotas. What has no buckets need not be told apart: what it counts is
/// compared by the key of its states.
pub(in crate::engine) fn fingerprint(hash: &KeyHash, limit: &Limit, overrides: Option<&Overrides>) -> u64 {
    let is_bucket = |quota: &Quota| matches!(quota, Quota::TokenBucket(_) | Quota::LeakyBucket(_));
    let has_buckets = limit.allowances.iter().flatten().any(|allowance| {
        is_bucket(&allowance.quota) || matches!(&allowance.over, Over::Elastic(second) if is_bucket(second))
    });
    if !has_buckets {
        return 0;
    }
    hash.digest_bytes(format!("{limit:?} {overrides:?}").as_bytes()).hash()
}

/// More rules than a host has.
const RULES_MAX: usize = 1 << 16;
