//! Descriptions of limits for people: numbers, key and bounds.

use std::time::Duration;

use crate::clock::Micros;
use crate::limit::{Quota, Rate, TickScale, fixed_window};
use crate::rules::percent::Percent;
use crate::rules::rule::RuleField;
use crate::rules::{FleetBound, KeyPart, Mode, OnMiss, OverTreatment, Rule};

/// Describes the algorithm and its numbers, similar to a rules file.
pub(crate) fn numbers(quota: &Quota) -> String {
    if matches!(quota, Quota::Concurrency(_)) {
        return quota.format_rate();
    }
    let own =
        quota_fields(quota).into_iter().filter(|(field, _)| ["burst", "queue", "buckets"].contains(field));
    let own: String = own.map(|(field, text)| format!(", {field} {text}")).collect();
    format!("{} {}{own}", quota.algorithm(), quota.format_rate())
}

/// Returns the fields of a quota as texts in the notation of rules files.
pub(super) fn quota_fields(quota: &Quota) -> Vec<RuleField> {
    let window = || span(quota.window().into());
    let own = match quota {
        Quota::Concurrency(quota) => return vec![("max", quota.max().to_string())],
        Quota::FleetBudget(quota) => return quota_fields(&quota.local_quota()),
        Quota::TokenBucket(quota) => vec![("burst", quota.burst().to_string())],
        Quota::LeakyBucket(quota) => vec![("queue", quota.queue().to_string())],
        Quota::FixedWindow(quota) => vec![("window", quota.describe_windows())],
        Quota::SlidingLog(_) => vec![("window", window())],
        Quota::SlidingWindow(quota) => vec![("window", window()), ("buckets", quota.buckets().to_string())],
    };
    [vec![("algorithm", quota.algorithm().to_owned()), ("rate", quota.format_rate())], own].concat()
}

/// The same for a quota that may be unlimited.
pub(crate) fn numbers_or_unlimited(quota: Option<&Quota>) -> String {
    quota.map_or_else(|| "unlimited".to_owned(), numbers)
}

pub(crate) fn each(rule: &Rule) -> String {
    match rule.key.as_slice() {
        [] => "for all together".to_owned(),
        key => format!("for each {}", key.iter().map(key_part).collect::<Vec<_>>().join(" and ")),
    }
}

fn key_part(part: &KeyPart) -> String {
    let mut text = part.attribute.to_string();
    if let Some(bits) = part.transform.ipv6_prefix {
        text.push_str(&format!(" (IPv6 by /{bits})"));
    }
    if part.transform.lowercase {
        text.push_str(" (in lower case)");
    }
    text
}

/// Formats a span as rules write it: `1h 15min`.
pub(crate) fn span(lasts: Duration) -> String {
    let text = humantime::format_duration(lasts).to_string();
    let parts =
        text.split(' ').map(|part| part.strip_suffix('m').map_or(part.to_owned(), |n| format!("{n}min")));
    parts.collect::<Vec<_>>().join(" ")
}

pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "",
        Mode::Shadow => " (shadow: refuses nothing)",
        Mode::Disabled => " (disabled: not checked)",
    }
}

/// Describes the largest number of units that this many hosts together admit for one key.
pub(crate) fn bound(quota: &Quota, hosts: u32) -> String {
    let times = |number: u32| u64::from(number) * u64::from(hosts);
    match quota {
        Quota::TokenBucket(quota) => {
            let rate = quota.rate();
            let (burst, count) = (times(quota.burst()), times(rate.count()));
            format!("at most {burst} + {count} × {} in any span", periods(&rate.to_string()))
        }
        // One budget for any number of hosts.
        Quota::FleetBudget(share) => match share.local_quota() {
            Quota::SlidingWindow(window) => {
                format!("at most {} in any {}", window.count(), period(&quota.format_rate()))
            }
            local => bound(&local, 1),
        },
        Quota::LeakyBucket(quota) => {
            // Rounded down so that the stated minimum holds.
            let rate = quota.bucket().rate();
            let apart = span(Duration::from_nanos(rate.period_nanos() / u64::from(rate.count())));
            let (start, waiting) = ("work starts at least", times(quota.queue()));
            match hosts {
                1 => format!("{start} {apart} apart, {waiting} may wait"),
                hosts => {
                    format!("{start} {apart} apart on each, so {hosts} may start at once; {waiting} may wait")
                }
            }
        }
        Quota::FixedWindow(quota) if quota.count() == 0 => "nothing passes".to_owned(),
        Quota::FixedWindow(quota) => {
            let count = times(quota.count());
            format!("at most {count} in each {}, so up to {} across an edge", window(quota), 2 * count)
        }
        Quota::SlidingLog(log) => {
            format!("at most {} in any {}, exactly", times(log.count()), period(&quota.format_rate()))
        }
        Quota::SlidingWindow(sliding) => {
            let (count, any) = (times(sliding.count()), period(&quota.format_rate()));
            let nanos = sliding.window_nanos() / u64::from(sliding.buckets());
            let bucket = span(Duration::from_nanos(nanos));
            format!(
                "an estimate of at most {count} in any {any}, off by at most what came in the oldest {bucket} of it; \
                 at worst {}",
                2 * count
            )
        }
        Quota::Concurrency(quota) if quota.is_fleet() => format!("never more than {} at once", quota.max()),
        Quota::Concurrency(quota) => format!("never more than {} at once", times(quota.max())),
    }
}

/// Describes the bound of a rule for one key: on all hosts for a fleet rule, else on one host.
pub(crate) fn bound_of(rule: &Rule, quota: &Quota) -> String {
    let own = bound(quota, 1);
    if rule.fleet.is_none() {
        return own;
    }
    match quota {
        // Work that a partitioned host started continues.
        Quota::Concurrency(_) => {
            format!("{own}, on all hosts together; besides, leases of hosts without Redis")
        }
        _ => format!("{own}, on all hosts together while Redis answers"),
    }
}

/// Describes the excess over the budget of a fleet rule.
pub(crate) fn past_budget(bound: &FleetBound) -> String {
    let quiet = match bound.quiet {
        0 => String::new(),
        share => {
            let share = Percent(share);
            format!(", and {share} of the rate more from hosts that hardly use the key")
        }
    };
    let past = match bound.on_miss {
        OnMiss::Admit if bound.windows => format!("{} more in each window", bound.extra),
        OnMiss::Admit => format!("{} more at once{quiet}", bound.extra),
        OnMiss::Refuse => format!("no more; a host that holds no {} refuses", bound.unit),
        OnMiss::Ask => format!("no more; a host that holds no {} asks Redis", bound.unit),
    };
    let cold = match bound.on_miss {
        OnMiss::Admit => format!("; a burst or cost up to {} passes on a host that holds none", bound.cold),
        OnMiss::Ask if bound.commands_per_second.is_some() => {
            format!(", where a burst or cost up to {} passes", bound.cold)
        }
        _ => String::new(),
    };
    let commands = match (bound.commands_per_second, bound.on_miss) {
        (None, _) => String::new(),
        (Some(0 | 1), _) => "; a command for each request".to_owned(),
        (Some(commands), OnMiss::Ask) => {
            format!("; about {commands} commands a second at the full rate of a key")
        }
        (Some(commands), _) => format!("; at most {commands} commands a second for a key"),
    };
    let used = match bound.round_trip_max_us {
        Some(micros) => format!("; 95% of the rate is used at round trips below {}", Micros(micros)),
        None if bound.commands_per_second.is_some() && !bound.windows => {
            "; less than 95% of the rate may be used".to_owned()
        }
        None => String::new(),
    };
    format!("{past}{cold}{commands}{used}")
}

/// Describes the soft or elastic part beyond the quota; `None` if further requests are refused.
pub(crate) fn beyond(over: &OverTreatment, lasts: Option<std::time::Duration>, hosts: u32) -> Option<String> {
    match over {
        OverTreatment::Refuse => None,
        OverTreatment::Soft(larger) => {
            let lasts = lasts.map_or_else(
                || "without end".to_owned(),
                |lasts| format!("for {} at a stretch", span(lasts)),
            );
            Some(format!("soft, {lasts}, marked: {}", bound(larger, hosts)))
        }
        OverTreatment::Elastic(second) => {
            Some(format!("elastic, while the pool has room, marked: besides {}", bound(second, hosts)))
        }
    }
}

pub(crate) fn expires(lasts: std::time::Duration) -> String {
    format!("a lease that is neither renewed nor released ends after {}", span(lasts))
}

/// Describes the precision of a bucket's rate; `None` for windows, which count whole units.
pub(crate) fn exactness(quota: &Quota) -> Option<String> {
    let (rate, scale) = steady(quota)?;
    Some(match (rate.rounding_parts_on(scale), scale.ticks_per_nano()) {
        (Some(parts), _) => format!("kept slow by one part in {parts}"),
        (None, 1) => "exact in ticks of 1 ns".to_owned(),
        (None, ticks) => format!("exact in ticks of 1/{ticks} ns"),
    })
}

pub(crate) fn steady(quota: &Quota) -> Option<(Rate, TickScale)> {
    match quota {
        Quota::TokenBucket(quota) => Some((quota.rate(), quota.scale())),
        Quota::LeakyBucket(quota) => Some((quota.bucket().rate(), quota.bucket().scale())),
        Quota::FleetBudget(quota) => steady(&quota.local_quota()),
        Quota::FixedWindow(_) | Quota::SlidingLog(_) | Quota::SlidingWindow(_) | Quota::Concurrency(_) => {
            None
        }
    }
}

fn window(quota: &fixed_window::FixedWindowQuota) -> String {
    let rate = crate::limit::Quota::FixedWindow(quota.clone()).format_rate();
    let shape = quota.describe_windows();
    let begins = shape.split_once(", ").map_or("", |(_, begins)| begins);
    let calendar =
        if matches!(quota.period(), fixed_window::WindowPeriod::Months(_)) { "calendar " } else { "" };
    format!("{calendar}{} ({begins})", period(&rate))
}

/// Spells out the period of a rate: `15 minutes` for `5/15min`.
fn period(rate: &str) -> String {
    let period = rate.split_once('/').map_or("s", |(_, period)| period);
    let digits = period.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = period.split_at_checked(digits).unwrap_or(("", period));
    let Some((_, one, many)) = SPANS.iter().find(|(known, ..)| *known == unit) else {
        return period.to_owned();
    };
    match number {
        "" | "1" => (*one).to_owned(),
        number => format!("{number} {many}"),
    }
}

/// Describes the number of periods in a span.
fn periods(rate: &str) -> String {
    let period = rate.split_once('/').map_or("s", |(_, period)| period);
    match SPANS.iter().find(|(unit, ..)| *unit == period) {
        Some((.., many)) => (*many).to_owned(),
        None => format!("(time ÷ {period})"),
    }
}

/// The most memory that the engine needs for one lease, in bytes.
pub(crate) const LEASE_BYTES_MAX: u64 = 128;

/// Units of periods, with their singular and plural names.
const SPANS: [(&str, &str, &str); 7] = [
    ("ms", "millisecond", "milliseconds"),
    ("s", "second", "seconds"),
    ("min", "minute", "minutes"),
    ("h", "hour", "hours"),
    ("day", "day", "days"),
    ("week", "week", "weeks"),
    ("month", "month", "months"),
];
