//! Rules that make no difference: whatever they would refuse, another refuses already.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::{Limit, Mode, Over, Refused, Rule, Transform};
use crate::limit::{Quota, Rate};

/// Rules that never refuse what another passes, each with the name of that other: same requests, same keys, the same
/// way of counting, and an enforced quota that is at most as generous.
pub(super) fn redundant(rules: &[Rule]) -> Vec<(&Rule, &str)> {
    let mut alike: HashMap<_, Vec<(&Rule, &Quota)>> = HashMap::new();
    for rule in rules.iter().filter(|rule| rule.mode != Mode::Disabled) {
        if let Some((quota, way)) = plain(rule) {
            alike.entry((meaning_of(rule), &rule.unit, way)).or_default().push((rule, quota));
        }
    }
    let mut redundant = Vec::new();
    for mut group in alike.into_values() {
        // Stable: of two that are equal the one written first stands.
        group.sort_by(|(_, one), (_, other)| slower_first(one, other));
        let mut strictest: Option<(&Rule, &Quota)> = None;
        for (rule, quota) in group {
            match strictest {
                Some((other, least)) if least.limit() <= quota.limit() => {
                    redundant.push((rule, &*other.name));
                }
                _ if rule.mode == Mode::Enforce => strictest = Some((rule, quota)),
                _ => {}
            }
        }
    }
    redundant
}

/// The numbers of a rule that refuses what is too much and does nothing else, and how it counts: two that count alike
/// differ in nothing but their numbers. A rule with a candidate or a warning has another purpose.
fn plain(rule: &Rule) -> Option<(&Quota, String)> {
    let Limit { allowances, refused: Refused::Free, block: None, .. } = &rule.limit else { return None };
    let [Some(allowance)] = allowances.as_slice() else { return None };
    let is_plain = allowance.over == Over::Refuse && rule.candidate.is_none() && rule.warn_at.is_none();
    let quota = is_plain.then_some(&allowance.quota)?;
    let way = match quota {
        Quota::TokenBucket(_) => String::new(),
        // It makes work wait: there is no telling what another lets through meanwhile.
        Quota::LeakyBucket(_) => return None,
        Quota::Share(quota) => quota
            .window()
            .map_or_else(String::new, |window| format!("{:?} {}", window.turns(), window.like().window())),
        // Work that ends sooner leaves room sooner.
        Quota::Concurrency(_) | Quota::Places(_) => format!("{:?}", rule.expires),
        Quota::FixedWindow(quota) => format!("{:?}", quota.with_count(1)),
        Quota::SlidingLog(quota) => format!("{:?}", quota.with_count(1)),
        Quota::SlidingWindow(quota) => format!("{:?}", quota.with_count(1)),
    };
    // A budget of the fleet and one of each host have nothing to do with each other.
    Some((quota, format!("{} {way} {:?}", quota.algorithm(), rule.fleet)))
}

/// Of buckets the slower first, of windows the smaller.
fn slower_first(one: &Quota, other: &Quota) -> Ordering {
    let cross = |rate: Rate, by: Rate| u128::from(rate.count()) * u128::from(by.period_nanos());
    let by_rate = match (one, other) {
        (Quota::TokenBucket(one), Quota::TokenBucket(other)) => {
            cross(one.rate(), other.rate()).cmp(&cross(other.rate(), one.rate()))
        }
        (Quota::Share(one), Quota::Share(other)) => {
            let (one, other) = (one.bucket().rate(), other.bucket().rate());
            cross(one, other).cmp(&cross(other, one))
        }
        _ => Ordering::Equal,
    };
    by_rate.then(one.limit().cmp(&other.limit()))
}

/// Conditions, each with whether an absent attribute will do, and the key.
type Meaning<'r> = (Vec<(&'r str, bool, Vec<String>)>, Vec<(&'r str, Transform)>);

/// What a rule matches and counts by, whatever the order in which it is written.
fn meaning_of(rule: &Rule) -> Meaning<'_> {
    let conditions = rule.conditions.iter().map(|condition| {
        let mut patterns: Vec<_> = condition.any_of.iter().map(|pattern| format!("{pattern:?}")).collect();
        patterns.sort_unstable();
        patterns.dedup();
        (&*condition.attribute, condition.or_absent, patterns)
    });
    let mut conditions: Vec<_> = conditions.collect();
    conditions.sort_unstable();
    let mut key: Vec<_> = rule.key.iter().map(|part| (&*part.attribute, part.transform)).collect();
    key.sort_unstable();
    (conditions, key)
}
