//! The part of a budget for the hosts of one region with its own Redis. Regions are not coordinated: parts
//! follow the configured weights, rounded down, but to no less than one token or permit.

use std::num::NonZeroU32;

use super::limits::Admitted;
use super::quotas::with_limit;
use crate::limit::{
    PERIOD_NANOS_MAX, Quota, Rate, TickScale, concurrency, greatest_common_divisor, token_bucket,
};
use crate::rules::Limit;
use crate::rules::de::Mapping;
use crate::rules::fleet::{CellRate, Region, WholeNumbers, is_window};
use crate::rules::percent::Percent;
use crate::rules::source::Report;

/// Returns the region's part of a rule; `None` without regions. Warns if it is less than a token or permit.
pub(super) fn region(
    weight: Option<u16>,
    mapping: Mapping<'_>,
    admitted: Option<&Admitted>,
    report: &mut Report<'_>,
) -> Option<Region> {
    let weight = weight?;
    let limit = admitted.map(|admitted| &admitted.limit)?;
    for allowance in limit.allowances.iter().flatten() {
        let (count, what, one) = match &allowance.quota {
            Quota::TokenBucket(bucket) => (bucket.burst(), "burst", "token"),
            Quota::Concurrency(quota) => (quota.max(), "`max`", "permit"),
            quota if is_window(quota) && quota.limit() > 0 => (quota.limit(), "limit", "token"),
            _ => continue,
        };
        if u64::from(count) * u64::from(weight) < WHOLE {
            let field = ["max", "burst", "rate"].into_iter().find(|field| mapping.has(field));
            let at = mapping.at(field.unwrap_or_default());
            let share = Percent(weight);
            let message =
                format!("{share} of a {what} of {count}, as `region_weight` says, is less than one {one}");
            let help = format!(
                "write a larger {what}: the region has one {one} all the same, so that all regions together have more"
            );
            report.warning(at, message, help);
            break;
        }
    }
    Some(Region { weight, whole: whole_numbers(limit) })
}

/// Returns the numbers of all regions together; `None` if the limit has none of its own.
pub(super) fn whole_numbers(limit: &Limit) -> Option<WholeNumbers> {
    match limit.quota()? {
        Quota::TokenBucket(bucket) => {
            Some(WholeNumbers::Tokens { rate: bucket.rate(), burst: bucket.burst() })
        }
        Quota::Concurrency(quota) => Some(WholeNumbers::Permits(quota.max())),
        window if is_window(window) => {
            let nanos = window.window().as_nanos();
            let rate = Rate::new(window.limit(), nanos).ok();
            rate.map(|rate| WholeNumbers::Tokens { rate, burst: window.limit() })
        }
        _ => None,
    }
}

/// Scales a limit to the region's part.
pub(super) fn weighed(mut limit: Limit, region: Option<&Region>) -> Limit {
    let Some(Region { weight, .. }) = region.copied() else { return limit };
    let rates = limit.allowances.iter().flatten().filter_map(|allowance| match &allowance.quota {
        Quota::TokenBucket(bucket) => Some(part_of_rate(bucket.rate(), weight)),
        _ => None,
    });
    // All quotas of a rule share one scale, so that their states are comparable.
    let scales = rates.map(TickScale::for_rate).map(Some);
    let scale = scales.reduce(|one, other| one?.lcm(other?)).flatten().unwrap_or(TickScale::FINEST);
    for allowance in limit.allowances.iter_mut().flatten() {
        if let Quota::Concurrency(quota) = &allowance.quota {
            let max = NonZeroU32::new(part_of_count(quota.max(), weight)).unwrap_or(NonZeroU32::MIN);
            allowance.quota = Quota::Concurrency(concurrency::ConcurrencyQuota::new(max));
        }
        let part = part_of_count(allowance.quota.limit(), weight);
        let is_counted = is_window(&allowance.quota) && allowance.quota.limit() > 0;
        if let Some(window) = is_counted.then(|| with_limit(&allowance.quota, part).ok()).flatten() {
            if allowance.max_debt == allowance.quota.limit() {
                allowance.max_debt = part;
            }
            allowance.quota = window;
            continue;
        }
        let Quota::TokenBucket(bucket) = &allowance.quota else { continue };
        let (whole, burst) = (bucket.burst(), part_of_count(bucket.burst(), weight));
        let part = part_of_bucket(part_of_rate(bucket.rate(), weight), burst, scale);
        if allowance.max_debt == whole {
            allowance.max_debt = part.burst();
        }
        allowance.quota = Quota::TokenBucket(part);
    }
    limit
}

/// Scales a number by a weight, rounded down but at least 1.
fn part_of_count(count: u32, weight: u16) -> u32 {
    u32::try_from(u64::from(count) * u64::from(weight) / WHOLE).unwrap_or(count).max(1)
}

/// Makes a bucket with as much of the burst as fits: all of it, unless filling it takes most of a year. Uses
/// a scale of its own if the scale of the rule does not support the rate.
fn part_of_bucket(rate: Rate, burst: u32, scale: TickScale) -> token_bucket::TokenBucketQuota {
    let fit = |scale| token_bucket::TokenBucketQuota::with_largest_burst(rate, burst, scale).ok();
    let part = [scale, TickScale::for_rate(rate)].into_iter().find_map(fit);
    part.unwrap_or_else(|| {
        unreachable!("a rate is kept on its own scale: the region would have all of the budget")
    })
}

/// Scales a rate: exact if hosts can share it, else the next lower one of the same period or of one unit.
fn part_of_rate(rate: Rate, weight: u16) -> Rate {
    let (count, period) = (u64::from(rate.count()) * u64::from(weight), rate.period_nanos());
    let common = greatest_common_divisor(count, WHOLE).max(1);
    let exact = (count / common, period.checked_mul(WHOLE / common));
    let below = (count / WHOLE, Some(period));
    let of_one =
        (1, u64::try_from((u128::from(period) * u128::from(WHOLE)).div_ceil(u128::from(count.max(1)))).ok());
    // If even that period is too long, use the longest: the part is then too large, but negligible.
    let longest = (1, Some(PERIOD_NANOS_MAX));
    let mut rates = [exact, below, of_one, longest].into_iter().filter_map(|(count, period)| {
        let rate = Rate::new(u32::try_from(count).ok()?, period?).ok()?;
        CellRate::of(rate).map(|_| rate)
    });
    rates.next().unwrap_or_else(|| unreachable!("hosts can share one unit in 366 days"))
}

const WHOLE: u64 = 1_000;
