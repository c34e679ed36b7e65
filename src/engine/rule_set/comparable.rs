//! Which states are comparable, and the kind of table for each.

use std::collections::HashMap;

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

/// Returns for each allowance the number of generations before that of `rule` in which its quota was in force, by those of
/// the rule `before`: a bucket last changed under one of these was not filled under a larger quota. Empty: none.
pub(super) fn generations_kept(rule: &Rule, before: &Rule, kept_before: &[u8], is_same: bool) -> Vec<u8> {
    if is_same {
        return kept_before.to_vec();
    }
    let mut known: HashMap<(Rate, u32), u8> = HashMap::new();
    for (index, bucket) in bucket_numbers(&before.limit).enumerate() {
        let Some(bucket) = bucket else { continue };
        let kept = kept_before.get(index).map_or(1, |kept| kept + 1).min(GENERATIONS_KEPT_MAX);
        known.entry(bucket).and_modify(|known| *known = kept.max(*known)).or_insert(kept);
    }
    let kept = |bucket: Option<(Rate, u32)>| bucket.and_then(|bucket| known.get(&bucket)).copied();
    bucket_numbers(&rule.limit).map(|bucket| kept(bucket).unwrap_or_default()).collect()
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

/// Returns those of a share: its borrowed tokens survive changes of its quota.
pub(in crate::engine) fn share_tag_and_salt(quota: &share::ShareQuota, hash_key: &HashKey) -> (Tag, Salt) {
    let scale = quota.bucket().scale();
    let salt = match quota.window() {
        None => hash_key.salt(&format!("share {}", scale.ticks_per_nano())),
        // Turns and length of a window are part of the salt: they determine when a state refills.
        Some(window) => {
            hash_key.salt(&format!("share {:?} {}", window.turns(), window.local_quota().window()))
        }
    };
    (Tag::bucket(scale, 0), salt)
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
