//! Which states are comparable, and the kind of table for each.

use std::collections::HashMap;

use super::CompiledRule;
use crate::clock::Timestamp;
use crate::engine::digest::{HashKey, Salt};
use crate::engine::tag::{GENERATIONS, Tag};
use crate::limit::{Quota, Rate, share};
use crate::rules::{Limit, Rule};

/// Returns the tag and the salt that separate states under a quota from incomparable ones.
pub(super) fn state_tag_and_salt(quota: &Quota, generation: u8, hash_key: &HashKey) -> (Tag, Salt) {
    let span = || Tag::span(quota.window().as_nanos());
    match quota {
        Quota::TokenBucket(bucket) => (Tag::bucket(bucket.scale(), generation), Salt::NONE),
        Quota::LeakyBucket(leaky) => {
            (Tag::bucket(leaky.bucket().scale(), generation), hash_key.salt("leaky_bucket"))
        }
        Quota::FixedWindow(window) => {
            let salt = hash_key.salt(&format!("fixed_window {}", window.describe_windows()));
            (Tag::span(window.window_nanos_max()), salt)
        }
        Quota::SlidingLog(_) => (span(), hash_key.salt(&format!("sliding_log {}", quota.window().0))),
        Quota::SlidingWindow(window) => {
            let shape = format!("sliding_window {} {}", quota.window().0, window.buckets());
            (span(), hash_key.salt(&shape))
        }
        Quota::Concurrency(quota) if quota.is_fleet() => (Tag::NONE, permit_salt(hash_key)),
        Quota::Concurrency(_) => (Tag::NONE, hash_key.salt("concurrency")),
        Quota::FleetBudget(share) => share_tag_and_salt(share, hash_key),
    }
}

/// How long the quota of an allowance has been in force.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct QuotaAge {
    /// The generations before that of its rule: a bucket last changed under one of these was not filled under another quota.
    pub(in crate::engine) generations: u8,
    pub(in crate::engine) since: Timestamp,
}

/// Returns the age of the quota of each allowance of `rule`, by those of the rule before it, which `at` ends.
pub(super) fn quota_ages(rule: &Rule, before: (&Rule, &CompiledRule), at: Timestamp) -> Vec<QuotaAge> {
    let mut known: HashMap<(Rate, u32), QuotaAge> = HashMap::new();
    for (allowance, bucket) in (0..).zip(bucket_numbers(&before.0.limit)) {
        let Some(bucket) = bucket else { continue };
        let age = before.1.quota_age(Some(allowance));
        let age = QuotaAge { generations: (age.generations + 1).min(GENERATIONS_KEPT_MAX), ..age };
        let known = known.entry(bucket).or_insert(age);
        if age.generations > known.generations {
            *known = age;
        }
    }
    let age = |bucket: Option<(Rate, u32)>| bucket.and_then(|bucket| known.get(&bucket)).copied();
    bucket_numbers(&rule.limit)
        .map(|bucket| age(bucket).unwrap_or(QuotaAge { generations: 0, since: at }))
        .collect()
}

/// The rate and the burst of each allowance that is a bucket.
fn bucket_numbers(limit: &Limit) -> impl Iterator<Item = Option<(Rate, u32)>> {
    limit.allowances.iter().map(|allowance| {
        let bucket = match &allowance.as_ref()?.quota {
            Quota::TokenBucket(bucket) => bucket,
            Quota::LeakyBucket(leaky) => leaky.bucket(),
            _ => return None,
        };
        Some((bucket.rate(), bucket.burst()))
    })
}

/// Older generations have the tags of later ones.
const GENERATIONS_KEPT_MAX: u8 = 100;

const _: () = assert!((GENERATIONS_KEPT_MAX as u16) < GENERATIONS);

/// Returns those of a share: its times are debts in the units of its numbers. Under other numbers a key has a state of its own,
/// while Redis knows what it has spent.
pub(in crate::engine) fn share_tag_and_salt(quota: &share::ShareQuota, hash_key: &HashKey) -> (Tag, Salt) {
    let scale = quota.bucket().scale();
    let comparable = format!("share {} {}", scale.ticks_per_nano(), quota.describe_numbers());
    (Tag::bucket(scale, 0), hash_key.salt(&comparable))
}

/// Returns the salt of shared concurrency states: they survive changes of their limit.
pub(in crate::engine) fn permit_salt(hash_key: &HashKey) -> Salt {
    hash_key.salt("places")
}

/// Returns whether its keys are hashed alike on all hosts.
pub(in crate::engine) fn is_shared(rule: &Rule) -> bool {
    rule.limit.allowances.iter().flatten().any(|allowance| match &allowance.quota {
        Quota::FleetBudget(_) => true,
        Quota::Concurrency(quota) => quota.is_fleet(),
        _ => false,
    })
}

pub(super) fn describe_key(rule: &Rule) -> String {
    format!("{:?} {:?}", rule.unit, rule.key)
}
