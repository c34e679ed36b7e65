//! Under which quotas the buckets were left that were put back. A rule that still has the same quotas goes on with them;
//! under any other its buckets are taken over, as at a reload.

use std::collections::HashMap;

use super::KeptRule;
use crate::engine::digest::KeyHash;
use crate::limit::Quota;
use crate::rules::{Limit, Over, Overrides};

/// What was put back of the rules.
#[derive(Debug, Default)]
pub(in crate::engine) struct Heritage {
    /// The fingerprint of the names of all rules.
    pub(in crate::engine) names: Option<u64>,
    rules: HashMap<u64, KeptRule>,
}

/// Whether the quotas are the same, and the mark that is on the buckets.
pub(in crate::engine) type Inherited = (bool, u8);

impl Heritage {
    pub(super) fn add(&mut self, rule: KeptRule) {
        if self.rules.len() < RULES_MAX {
            self.rules.insert(rule.identity, rule);
        }
    }

    pub(super) fn all(&self) -> Vec<KeptRule> {
        self.rules.values().copied().collect()
    }

    /// What a rule's own buckets were left under.
    pub(in crate::engine) fn own(&self, rule: u64, fingerprint: impl FnOnce() -> u64) -> Option<Inherited> {
        let (known, mark) = self.rules.get(&rule)?.own;
        Some((known == fingerprint(), mark))
    }

    /// The same of its candidate.
    pub(in crate::engine) fn candidate(
        &self,
        rule: u64,
        fingerprint: impl FnOnce() -> u64,
    ) -> Option<Inherited> {
        let (known, mark) = self.rules.get(&rule)?.candidate?;
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
