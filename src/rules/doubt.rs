//! What can be used and was perhaps not meant: the warnings.

use super::problem::shown;
use super::source::{Place, Report};
use super::{Limit, Rule};
use crate::limit::{Quota, Rate, Scale};

/// A limit that admits more in one period, or slightly less over time, than it says.
pub(super) fn about_limit(limit: &Limit, at: Place, report: &mut Report<'_>) {
    if let Some(Quota::TokenBucket(quota)) = limit.quota() {
        about_period(quota.rate(), quota.burst(), at, report);
    }
    if let Some((rate, scale)) = limit.quota().and_then(steady)
        && let Some(parts) = rate.rounding_on(scale)
    {
        let message = format!("the rate {rate} is not exact: it is kept slow by one part in {parts}");
        let mend = match rate.rounding() {
            Some(_) => "exact are numbers up to 128 and those that divide the period evenly",
            None => {
                "it would be without its overrides: exact together are rates whose numbers have common factors"
            }
        };
        report.warning(at, message, mend);
        return;
    }
    let overrides =
        limit.allowances.iter().skip(1).flatten().filter_map(|allowance| steady(&allowance.quota));
    let rounded = overrides.filter_map(|(rate, scale)| Some((rate, rate.rounding_on(scale)?)));
    if let Some((rate, parts)) = rounded.min_by_key(|(_, parts)| *parts) {
        let message =
            format!("the rate {rate} of an override is not exact: it is kept slow by one part in {parts}");
        report.warning(at, message, "exact are numbers up to 128 and those that divide the period evenly");
    }
}

/// A token bucket whose period is a day or more lets nearly twice its number through in one.
pub(super) fn about_period(rate: Rate, burst: u32, at: Place, report: &mut Report<'_>) {
    if rate.period_nanos() >= DAY_NANOS {
        let count = u64::from(rate.count()) + u64::from(burst);
        let period = rate.to_string();
        let period = period.split_once('/').map_or("day", |(_, period)| period);
        let message = format!("a token bucket of {rate} lets up to {count} through in one {period}");
        let mend = "a `burst` below the rate narrows that; `algorithm: fixed_window` counts by the calendar";
        report.warning(at, message, mend);
    }
}

/// The rate of a bucket, and the scale on which it is kept.
fn steady(quota: &Quota) -> Option<(Rate, Scale)> {
    match quota {
        Quota::TokenBucket(quota) => Some((quota.rate(), quota.scale())),
        Quota::LeakyBucket(quota) => Some((quota.rate(), quota.scale())),
        _ => None,
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

const DAY_NANOS: u64 = 86_400 * 1_000_000_000;
