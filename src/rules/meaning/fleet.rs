//! Reader of `scope` and `fleet`: fleet settings, and fields that a fleet does not support; and the part of a budget for
//! the hosts of one region with its own Redis. Regions are not coordinated: parts follow the configured weights, rounded
//! down, but to no less than one token or permit.

use std::num::NonZeroU32;
use std::time::Duration;

use super::KindFields;
use super::limits::Admitted;
use super::quotas::with_limit;
use crate::limit::concurrency::ConcurrencyQuota;
use crate::limit::share::{self, Fallback, RemoteCheckWait};
use crate::limit::token_bucket::TokenBucketQuota;
use crate::limit::{PERIOD_NANOS_MAX, Quota, Rate, TickScale, greatest_common_divisor};
use crate::rules::de::FileNode;
use crate::rules::file::{Algorithm, CommonFields, DefaultsFields, FleetFields};
use crate::rules::fleet::{CellRate, Region, WholeNumbers, is_window};
use crate::rules::percent::{self, Percent};
use crate::rules::{FleetMode, FleetSettings, Limit, OnMiss, Scope, Scopes};

#[derive(Clone, Copy, Debug)]
pub(in crate::rules) struct DefaultScope {
    scope: Scope,
    by: ScopeSource,
    /// The weight of this region in each budget, in thousandths.
    weight: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScopeSource {
    Rule,
    Defaults,
    Settings,
}

impl DefaultScope {
    /// Takes the scope from the `defaults` of the file if they have one, else from the settings.
    pub(in crate::rules) fn new(
        scopes: &Scopes,
        domain: Option<&str>,
        defaults: Option<&DefaultsFields>,
    ) -> DefaultScope {
        let (scope, by) = match defaults.and_then(|defaults| defaults.scope) {
            Some(scope) => (scope, ScopeSource::Defaults),
            None => (domain.map_or(scopes.all, |name| scopes.of(name)), ScopeSource::Settings),
        };
        DefaultScope { scope, by, weight: scopes.weight }
    }

    fn asks(self) -> &'static str {
        match self.by {
            ScopeSource::Rule => "`scope: fleet`",
            ScopeSource::Defaults => "`scope: fleet` of `defaults`",
            ScopeSource::Settings => "`scope: fleet` of the settings",
        }
    }
}

/// Returns the fleet settings of a rule; `None` with `scope: host`, or after an error.
pub(super) fn fleet(
    common: &CommonFields<'_>,
    own: &KindFields<'_>,
    mapping: FileNode<'_>,
    given: DefaultScope,
) -> Option<FleetSettings> {
    let given = match common.scope {
        Some(scope) => DefaultScope { scope, by: ScopeSource::Rule, ..given },
        None => given,
    };
    if given.scope == Scope::Host {
        for name in ["fleet", "max_over"] {
            let Some(at) = mapping.key(name) else { continue };
            let message =
                format!("`{name}` says how hosts share a budget, and this rule counts on each host");
            at.error(message, format!("write `scope: fleet`, or leave `{name}` out"));
        }
        return None;
    }
    let at = mapping.field(if common.scope.is_some() { "scope" } else { "name" });
    if !may_be_shared(own.algorithm, given, at) {
        return None;
    }
    let admitted = own.admitted.as_ref();
    about_strangers(mapping, given);
    about_rates(mapping, admitted);
    about_windows(mapping, admitted);
    let settings = match (&common.fleet, mapping.get("fleet")) {
        (Some(fields), Some(node)) => settings(fields, node, mapping.has("max"))?,
        _ => FleetSettings::default(),
    };
    let max_over = match own.max_over {
        Some(share) => Some(max_over(share.0, mapping.field("max_over"), &settings, admitted)?),
        None => None,
    };
    let region = region(given.weight, mapping, admitted);
    Some(FleetSettings { max_over, region, ..settings })
}

/// Returns the fleet settings of a descriptor, which has no scope of its own.
pub(super) fn of_descriptor(given: DefaultScope, limit: &Limit) -> Option<FleetSettings> {
    let region = given.weight.map(|weight| Region { weight, whole: whole_numbers(limit) });
    (given.scope == Scope::Fleet).then(|| FleetSettings { region, ..FleetSettings::default() })
}

/// Converts a limit to its fleet form, in which all hosts share each quota.
pub(super) fn shared(limit: Limit, settings: &FleetSettings) -> Limit {
    let mut limit = weighed(limit, settings.region.as_ref());
    for allowance in limit.allowances.iter_mut().flatten() {
        let max_debt = allowance.max_debt;
        match &allowance.quota {
            Quota::TokenBucket(bucket) => {
                let (bucket, credit) = (*bucket, credit_of(settings));
                let quota = share::ShareQuota::new(bucket, credit, settings.on_redis_down);
                allowance.quota = Quota::FleetBudget(Box::new(share_of(quota, max_debt, settings)));
            }
            // Windows that cannot be shared were reported. A window of 0 refuses everything on each host.
            Quota::FixedWindow(_) | Quota::SlidingWindow(_) => {
                let own = allowance.quota.clone();
                if let Ok(quota) =
                    share::ShareQuota::for_window(own, credit_of(settings), settings.on_redis_down)
                {
                    allowance.quota = Quota::FleetBudget(Box::new(share_of(quota, max_debt, settings)));
                }
            }
            Quota::Concurrency(quota) => {
                let asks = match settings.on_miss {
                    None | Some(OnMiss::Ask) => RemoteCheckWait::OnMiss,
                    Some(OnMiss::Admit | OnMiss::Refuse) => RemoteCheckWait::Never,
                };
                let terms = share::FleetTerms::new(settings.on_redis_down, asks, settings.wait());
                allowance.quota = Quota::Concurrency(quota.clone().shared(terms));
            }
            _ => {}
        }
    }
    limit
}

fn credit_of(settings: &FleetSettings) -> u16 {
    match (settings.mode, settings.on_miss) {
        (FleetMode::Borrow, Some(OnMiss::Admit)) => settings.over(),
        _ => 0,
    }
}

fn share_of(quota: share::ShareQuota, max_debt: u32, settings: &FleetSettings) -> share::ShareQuota {
    let asks = match (settings.mode, settings.on_miss) {
        (FleetMode::Exact, _) => RemoteCheckWait::Always,
        (_, None | Some(OnMiss::Ask)) => RemoteCheckWait::OnMiss,
        // The promised `max_over` holds for any number of hosts.
        (_, Some(OnMiss::Admit)) if settings.max_over.is_some() => RemoteCheckWait::BelowUnitCredit,
        (_, Some(OnMiss::Admit | OnMiss::Refuse)) => RemoteCheckWait::Never,
    };
    quota.with_remote_checks(asks).with_wait_max(settings.wait()).with_debt_max(max_debt)
}

fn may_be_shared(algorithm: Algorithm, given: DefaultScope, at: FileNode<'_>) -> bool {
    // The others have no budget that can be divided into shares: the leaky bucket is a pace, the sliding log a
    // list of all requests.
    if !matches!(algorithm, Algorithm::LeakyBucket | Algorithm::SlidingLog) {
        return true;
    }
    let help = match given.by {
        ScopeSource::Rule => "write `scope: host`, a `token_bucket`, or a window",
        ScopeSource::Defaults => "write `scope: host` in the rule, or in `defaults` for all of the file",
        ScopeSource::Settings => {
            "write `defaults: {scope: host}` in this file, or another `scope` in the settings"
        }
    };
    let message = format!("a `{algorithm}` cannot be shared by hosts, and {} asks for it", given.asks());
    at.error(message, help);
    false
}

/// Reports fleet settings that do not apply to concurrency.
fn about_permits(fields: &FleetFields, mapping: FileNode<'_>) {
    if fields.mode == Some(FleetMode::Exact) {
        let message =
            "`mode: exact` does not go with `max`: Redis decides about each request without a permit anyway";
        mapping.error_at("mode", message, "leave `mode` out");
    }
    if fields.on_miss == Some(OnMiss::Admit) {
        let message = "`on_miss: admit` does not go with `max`: a request without a permit must not start";
        mapping.error_at("on_miss", message, "leave `on_miss` out, or write `on_miss: ask`");
    }
}

/// Reports fields that have a meaning on one host only.
fn about_strangers(mapping: FileNode<'_>, given: DefaultScope) {
    for (name, why, help) in STRANGERS {
        let Some((at, node)) = mapping.key(name).zip(mapping.get(name)) else { continue };
        // The default is accepted.
        if matches!((*name, node.as_scalar()), ("over", Some("refuse")) | ("refused", Some("free"))) {
            continue;
        }
        at.error(format!("`{name}` does not go with {}: {why}", given.asks()), *help);
    }
}

/// Reports windows that hosts cannot share.
fn about_windows(mapping: FileNode<'_>, admitted: Option<&Admitted>) {
    let Some(limit) = admitted.map(|admitted| &admitted.limit) else { return };
    let windows = limit.allowances.iter().flatten().map(|allowance| &allowance.quota);
    let windows = windows.filter(|quota| is_window(quota) && quota.limit() > 0);
    let faults =
        windows.filter_map(|quota| share::ShareQuota::for_window(quota.clone(), 0, Fallback::Share).err());
    let Some(fault) = faults.into_iter().next() else { return };
    let (name, help) = match fault {
        share::SharedWindowError::PerKey => ("align", "leave `align` out, or write `scope: host`"),
        share::SharedWindowError::TooShort => {
            ("rate", "write a window of a second or more, or a `token_bucket`")
        }
        share::SharedWindowError::NoWindow | share::SharedWindowError::Rate(_) => {
            ("rate", "write a rounder number, or `scope: host`")
        }
    };
    mapping.error_at(name, format!("hosts cannot share this rule: {fault}"), help);
}

/// Reports rates that Redis scripts cannot count exactly.
fn about_rates(mapping: FileNode<'_>, admitted: Option<&Admitted>) {
    let Some(limit) = admitted.map(|admitted| &admitted.limit) else { return };
    let mut allowances = (0..).zip(&limit.allowances);
    let wrong = allowances.find_map(|(number, allowance)| match &allowance.as_ref()?.quota {
        Quota::TokenBucket(quota) if CellRate::of(quota.rate()).is_none() => Some((number, quota.rate())),
        _ => None,
    });
    let Some((number, rate)) = wrong else { return };
    let (field, whose) = match number {
        0 => ("rate", ""),
        _ if mapping.has("overrides") => ("overrides", " of an override"),
        _ => ("overrides_file", " of an override"),
    };
    let message = format!("the rate {rate}{whose} cannot be counted exactly over a fleet");
    let help = "write a rounder number, and at most 1000000000/s, or `scope: host`";
    mapping.error_at(field, message, help);
}

fn settings(fields: &FleetFields, mapping: FileNode<'_>, is_of_places: bool) -> Option<FleetSettings> {
    let errors_before = mapping.report.errors();
    if fields.deadline.is_some() {
        mapping.warn_at("deadline", "`deadline` is now called `wait`", "write `wait`");
    }
    let (mode, on_miss) = (fields.mode.unwrap_or_default(), fields.on_miss);
    if on_miss.is_some() && mode == FleetMode::Exact {
        let message = "`on_miss` does not go with `mode: exact`: Redis is asked each time";
        mapping.error_at("on_miss", message, "leave `on_miss` out, or write `mode: borrow`");
    }
    let never_waits = mode == FleetMode::Borrow && matches!(on_miss, Some(OnMiss::Admit | OnMiss::Refuse));
    if fields.wait.is_some() && never_waits {
        let message = "`wait` has no effect here: no request waits for Redis";
        mapping.warn_at("wait", message, "leave it out, or write `on_miss: ask`");
    }
    if is_of_places {
        about_permits(fields, mapping);
    }
    let wait = fields.wait.or(fields.deadline).map(|wait| wait.0);
    if wait > Some(WAIT_OF_CLIENTS) && !never_waits {
        let field = if fields.wait.is_some() { "wait" } else { "deadline" };
        let message = "clients wait 20ms by default: where this wait is needed they give up, and their requests pass unjudged";
        mapping.warn_at(field, message, "give each client a `timeout` that is 5ms longer, or write `15ms`");
    }
    let on_redis_down = fields.on_redis_down.unwrap_or_default();
    let settings = FleetSettings { mode, on_miss, on_redis_down, max_over: None, region: None, wait };
    (mapping.report.errors() == errors_before).then_some(settings)
}

/// Checks `max_over` in thousandths. With `on_miss: admit` it must allow one token on each of two hosts, as a
/// fleet has at least two.
fn max_over(
    share: u16,
    at: FileNode<'_>,
    settings: &FleetSettings,
    admitted: Option<&Admitted>,
) -> Option<u16> {
    if share == 0 {
        let message = "`max_over` is 0%: no request may exceed the budget";
        at.error(message, "leave it out, and write `fleet: {on_miss: refuse}`");
        return None;
    }
    if settings.mode == FleetMode::Exact || settings.on_miss != Some(OnMiss::Admit) {
        let message = "`max_over` has no effect here: the budget is never exceeded";
        at.warn(message, "leave it out, or write `fleet: {on_miss: admit}`");
        return Some(share);
    }
    let allowances = admitted.into_iter().flat_map(|admitted| admitted.limit.allowances.iter().flatten());
    let least = allowances.map(|allowance| allowance.quota.limit()).min();
    if let Some(least) = least
        && u64::from(share) * u64::from(least) < 2 * percent::WHOLE
    {
        let share = Percent(share);
        let message = format!(
            "`max_over: {share}` of {least} is less than one token on each of two hosts, and `on_miss: admit` lets \
             every host pass one"
        );
        let needed = u32::try_from((2 * percent::WHOLE).div_ceil(u64::from(least))).unwrap_or(u32::MAX);
        let help = match needed <= u32::from(percent::WHOLE_SHARE) {
            true => format!(
                "leave `on_miss` out, write `on_miss: refuse`, or at least `max_over: {}`",
                Percent(needed)
            ),
            false => "leave `on_miss` out, or write `on_miss: refuse`".to_owned(),
        };
        at.error(message, help);
        return None;
    }
    Some(share)
}

/// Returns the region's part of a rule; `None` without regions. Warns if it is less than a token or permit.
fn region(weight: Option<u16>, mapping: FileNode<'_>, admitted: Option<&Admitted>) -> Option<Region> {
    let weight = weight?;
    let limit = admitted.map(|admitted| &admitted.limit)?;
    for allowance in limit.allowances.iter().flatten() {
        let (count, what, one) = match &allowance.quota {
            Quota::TokenBucket(bucket) => (bucket.burst(), "burst", "token"),
            Quota::Concurrency(quota) => (quota.max(), "`max`", "permit"),
            quota if is_window(quota) && quota.limit() > 0 => (quota.limit(), "limit", "token"),
            _ => continue,
        };
        if u64::from(count) * u64::from(weight) < percent::WHOLE {
            let field = ["max", "burst", "rate"].into_iter().find(|field| mapping.has(field));
            let at = mapping.field(field.unwrap_or_default());
            let share = Percent(weight);
            let message =
                format!("{share} of a {what} of {count}, as `region_weight` says, is less than one {one}");
            let help = format!(
                "write a larger {what}: the region has one {one} all the same, so that all regions together have more"
            );
            at.warn(message, help);
            break;
        }
    }
    Some(Region { weight, whole: whole_numbers(limit) })
}

/// Returns the numbers of all regions together; `None` if the limit has none of its own.
fn whole_numbers(limit: &Limit) -> Option<WholeNumbers> {
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
fn weighed(mut limit: Limit, region: Option<&Region>) -> Limit {
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
            allowance.quota = Quota::Concurrency(ConcurrencyQuota::new(max));
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
    u32::try_from(u64::from(count) * u64::from(weight) / percent::WHOLE).unwrap_or(count).max(1)
}

/// Makes a bucket with as much of the burst as fits: all of it, unless filling it takes most of a year. Uses
/// a scale of its own if the scale of the rule does not support the rate.
fn part_of_bucket(rate: Rate, burst: u32, scale: TickScale) -> TokenBucketQuota {
    let fit = |scale| TokenBucketQuota::with_largest_burst(rate, burst, scale).ok();
    let part = [scale, TickScale::for_rate(rate)].into_iter().find_map(fit);
    part.unwrap_or_else(|| {
        unreachable!("a rate is kept on its own scale: the region would have all of the budget")
    })
}

/// Scales a rate: exact if hosts can share it, else the next lower one of the same period or of one unit.
fn part_of_rate(rate: Rate, weight: u16) -> Rate {
    let (count, period) = (u64::from(rate.count()) * u64::from(weight), rate.period_nanos());
    let common = greatest_common_divisor(count, percent::WHOLE).max(1);
    let exact = (count / common, period.checked_mul(percent::WHOLE / common));
    let below = (count / percent::WHOLE, Some(period));
    let of_one = (
        1,
        u64::try_from((u128::from(period) * u128::from(percent::WHOLE)).div_ceil(u128::from(count.max(1))))
            .ok(),
    );
    // If even that period is too long, use the longest: the part is then too large, but negligible.
    let longest = (1, Some(PERIOD_NANOS_MAX));
    let mut rates = [exact, below, of_one, longest].into_iter().filter_map(|(count, period)| {
        let rate = Rate::new(u32::try_from(count).ok()?, period?).ok()?;
        CellRate::of(rate).map(|_| rate)
    });
    rates.next().unwrap_or_else(|| unreachable!("hosts can share one unit in 366 days"))
}

/// Fields that have a meaning on one host only, the reason, and the help.
const STRANGERS: &[(&str, &str, &str)] = &[
    ("over", "`max_over` bounds the excess", "leave `over` out, or write `scope: host`"),
    (
        "refused",
        "hosts divide the admitted requests among them, and one would take its refused ones from the others",
        "leave `refused` out, or write `scope: host`",
    ),
    (
        "block",
        "only the host that refused would block",
        "leave `block` out, or write it in a rule of its own with `scope: host`",
    ),
    (
        "candidate",
        "it would be measured on each host by itself",
        "write it as a rule of its own with `scope: fleet` and `mode: shadow`",
    ),
    (
        "refund_on",
        "a late refund could exceed the budget",
        "leave `refund_on` out, or write it in a rule of its own with `scope: host`",
    ),
];

/// The longest wait that leaves clients the time of a decision within their default timeout of 20 ms.
const WAIT_OF_CLIENTS: Duration = Duration::from_millis(15);
