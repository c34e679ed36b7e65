//! What can be used and was perhaps not meant: the warnings.

use std::collections::HashMap;

use super::problem::shown;
use super::source::{Place, Report};
use super::{Mode, Rule, Transform};
use crate::limit::token_bucket::Quota;
use crate::limit::{Quota as AnyQuota, Rate};

/// A rate that admits more in one period, or slightly less over time, than it says.
pub(super) fn about_quota(quota: &Quota, at: Place, report: &mut Report<'_>) {
    let rate = quota.rate();
    if rate.period_nanos() >= DAY_NANOS {
        let count = u64::from(rate.count()) + u64::from(quota.burst());
        let period = rate.to_string();
        let period = period.split_once('/').map_or("day", |(_, period)| period);
        let message = format!("a token bucket of {rate} lets up to {count} through in one {period}");
        let mend =
            "a `burst` below the rate narrows that; `algorithm: fixed_window` will count by the calendar";
        report.warning(at, message, mend);
    }
    if let Some(parts) = rate.rounding() {
        let message = format!("the rate {rate} is not exact: it is kept slow by one part in {parts}");
        report.warning(at, message, "exact are numbers up to 128 and those that divide the period evenly");
    }
}

/// A counter for each value of an attribute that can have one value only.
pub(super) fn about_key(rule: &Rule, at: Place, report: &mut Report<'_>) {
    for attribute in rule.key.iter().map(|part| &part.attribute) {
        let condition = rule.conditions.iter().find(|condition| condition.attribute == *attribute);
        let Some([only]) = condition.map(|condition| condition.any_of.as_slice()) else { continue };
        if let Some(value) = only.as_exact().filter(|value| !value.is_empty()) {
            let message =
                format!("{} is always {} here: counting by it counts once", shown(attribute), shown(value));
            report.warning(at, message, "leave it out of `key`, or out of `match`");
        }
    }
}

/// Rules that never refuse what another passes, each with the name of that other: same requests, same keys, and
/// an enforced quota that is at most as generous in both rate and burst.
pub(super) fn redundant(rules: &[Rule]) -> Vec<(&Rule, &str)> {
    let mut alike: HashMap<_, Vec<&Rule>> = HashMap::new();
    for rule in rules.iter().filter(|rule| rule.mode != Mode::Disabled && bucket(rule).is_some()) {
        alike.entry(meaning_of(rule)).or_default().push(rule);
    }
    let mut redundant = Vec::new();
    for mut group in alike.into_values() {
        // Stable: of two that are equal the one written first stands.
        group.sort_by(|one, other| slower_first(one, other));
        let mut strictest: Option<&Rule> = None;
        for rule in group {
            match strictest {
                Some(other) if bucket(other).map(Quota::burst) <= bucket(rule).map(Quota::burst) => {
                    redundant.push((rule, &*other.name));
                }
                _ if rule.mode == Mode::Enforce => strictest = Some(rule),
                _ => {}
            }
        }
    }
    redundant
}

/// The numbers of a rule that is a token bucket.
fn bucket(rule: &Rule) -> Option<&Quota> {
    match rule.limit.quota()? {
        AnyQuota::TokenBucket(quota) => Some(quota),
    }
}

fn slower_first(one: &Rule, other: &Rule) -> std::cmp::Ordering {
    let (Some(one), Some(other)) = (bucket(one), bucket(other)) else { return std::cmp::Ordering::Equal };
    let cross = |rate: Rate, by: Rate| u128::from(rate.count()) * u128::from(by.period_nanos());
    let (mine, theirs) = (one.rate(), other.rate());
    cross(mine, theirs).cmp(&cross(theirs, mine)).then(one.burst().cmp(&other.burst()))
}

/// For each attribute that is asked for, whether it may be absent and which patterns it may fit; and the key.
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

const DAY_NANOS: u64 = 86_400 * 1_000_000_000;
