//! The meaning of quota fields, overrides in a list and `shed`; the published limiters. `diagnostics/meanings.txt` has
//! the fields of more rules.

use std::fmt::Write;
use std::time::Duration;

use tidegate::limit::{Quota, TickScale};
use tidegate::rules::shed::{FleetReserve, Workers};
use tidegate::rules::{Allowance, Limit, Mode, OverTreatment, RefusedCost, Rule, read, read_text};

use super::problems::folder;

/// A quota as the tables write it.
pub(super) fn quota(quota: &Quota) -> String {
    match quota {
        Quota::TokenBucket(quota) => format!("{} burst {}", quota.rate(), quota.burst()),
        Quota::LeakyBucket(quota) => format!("{} queue {}", quota.bucket().rate(), quota.queue()),
        Quota::FixedWindow(quota) => {
            let once = format!("{:?}", quota.period());
            let is_first = quota.describe_windows().ends_with("from the first request");
            format!("{} fixed {once} on {}", quota.count(), if is_first { "Boot" } else { "Unix" })
        }
        Quota::SlidingLog(quota) => {
            format!("{} log {}s", quota.count(), quota.window_nanos() / 1_000_000_000)
        }
        Quota::SlidingWindow(quota) => {
            format!("{} sliding {}s/{}", quota.count(), quota.window_nanos() / 1_000_000_000, quota.buckets())
        }
        Quota::Concurrency(quota) => match quota.fallback() {
            Some(fallback) => format!("{} at once, shared, {fallback:?}", quota.max()),
            None => format!("{} at once", quota.max()),
        },
        Quota::FleetBudget(quota) => {
            let (bucket, credit, down) = (quota.bucket(), quota.credit(), quota.fallback());
            format!("{} burst {} shared, credit {credit}, {down:?}", bucket.rate(), bucket.burst())
        }
    }
}

fn allowance(allowance: Option<&Allowance>) -> String {
    let Some(allowance) = allowance else { return "unlimited".to_owned() };
    let mut shown = quota(&allowance.quota);
    match &allowance.over {
        OverTreatment::Refuse => {}
        OverTreatment::Soft(soft) => write!(shown, " soft {}", quota(soft)).unwrap(),
        OverTreatment::Elastic(elastic) => write!(shown, " elastic {}", quota(elastic)).unwrap(),
    }
    if allowance.max_debt != allowance.quota.limit() {
        write!(shown, " debt {}", allowance.max_debt).unwrap();
    }
    shown
}

pub(super) fn limit(limit: &Limit) -> String {
    let each: Vec<_> = limit.allowances.iter().map(|of| allowance(of.as_ref())).collect();
    let mut shown = each.join(" | ");
    if limit.refused == RefusedCost::Counted {
        shown.push_str(" counted");
    }
    if let Some(block) = limit.block {
        write!(shown, " block {block:?}").unwrap();
    }
    if let Some(span) = limit.soft_for {
        write!(shown, " for {span:?}").unwrap();
    }
    shown
}

/// The one rule of a file that has no errors.
#[track_caller]
pub(super) fn rule(fields: &str) -> Rule {
    let text = format!("domain: api\nlimits:\n  - {{name: a, key: [u], {fields}}}\n");
    let loaded = read_text("rules.yaml", &text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains[0].rules()[0].clone()
}

#[test]
fn equal_overrides_share_one_number() {
    let rule = rule(
        "rate: 10/s, burst: 50, over: {soft: 10%}, max_debt: 7, overrides: [\
         {match: {p: a}, rate: 20/s}, {match: {p: b}, rate: unlimited}, {match: {p: c}, rate: 20/s}, \
         {match: {p: [d, e*], q: x}, rate: 20/s, burst: 100}, {match: {}, rate: 10/s, burst: 50}]",
    );
    let expected = "10/s burst 50 soft 10/s burst 55 debt 7 | 20/s burst 20 soft 20/s burst 22 debt 7 | unlimited \
                    | 20/s burst 100 soft 20/s burst 110 debt 7 | 10/s burst 50 soft 10/s burst 55 debt 7";
    assert_eq!(limit(&rule.limit), expected);
    let overrides = rule.overrides.unwrap();
    let numbers: Vec<_> =
        overrides.list.iter().map(|(conditions, number)| (conditions.len(), *number)).collect();
    assert_eq!(numbers, [(1, 1), (1, 2), (1, 1), (2, 3), (0, 4)]);
    assert!(overrides.rows.is_empty() && overrides.file.is_none());
}

#[test]
fn all_rates_of_a_rule_share_one_scale() {
    let scales = |fields: &str| -> Vec<TickScale> {
        let rule = rule(fields);
        let quotas = rule.limit.allowances.iter().flatten().flat_map(|allowance| match &allowance.over {
            OverTreatment::Refuse => vec![&allowance.quota],
            OverTreatment::Soft(over) | OverTreatment::Elastic(over) => vec![&allowance.quota, &**over],
        });
        let scale = |quota: &Quota| match quota {
            Quota::TokenBucket(quota) => quota.scale(),
            Quota::LeakyBucket(quota) => quota.bucket().scale(),
            other => panic!("{other:?} has no scale"),
        };
        quotas.map(scale).collect()
    };
    let ticks = |ticks| TickScale::from_ticks_per_nano(ticks).unwrap();
    assert_eq!(scales("rate: 10/s"), [TickScale::NANOS]);
    assert_eq!(scales("rate: 3/s, overrides: [{match: {p: a}, rate: 7/s}]"), [ticks(21), ticks(21)]);
    let leaky = "rate: 3/s, algorithm: leaky_bucket, overrides: [{match: {p: a}, rate: 7/s}]";
    assert_eq!(scales(leaky), [ticks(21), ticks(21)]);
    // The elastic share counts as well: 3.3 per second.
    assert_eq!(scales("rate: 11/s, over: {elastic: 30%}"), [ticks(33), ticks(33)]);
    let many = "rate: 9/s, overrides: [{match: {p: a}, rate: 11/s}, {match: {p: b}, rate: 7/s}]";
    assert_eq!(scales(many), [TickScale::FINEST; 3]);
}

#[test]
fn accepts_priorities_in_another_file() {
    let reserve = "domain: api\nshed: [{pool: web, fleet: {reserve: 20%, for: low}}]\n";
    let priorities = "domain: api\npriorities: [high, low, lowest]\nshed: [{pool: jobs, brake: {}}]\n";
    let loaded = read(folder(&[("a.yaml", reserve), ("b.yaml", priorities)]).path());
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let sheds = loaded.domains[0].sheds();
    assert_eq!(sheds.iter().map(|shed| &*shed.pool).collect::<Vec<_>>(), ["web", "jobs"]);
    assert_eq!(sheds[0].fleet.unwrap().reserved_for, 1);
    assert_eq!(sheds[1].brake.as_ref().unwrap().bands, [700, 900]);
}

#[test]
fn example_matches_four_published_limiters() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules/four-limiters.yaml");
    let loaded = read(&path);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let numbers: Vec<_> = domain.rules().iter().map(|rule| quota(rule.limit.quota().unwrap())).collect();
    assert_eq!(numbers, ["100/s burst 500", "20 at once"]);
    assert_eq!(domain.rules()[1].expires, Some(Duration::from_secs(60)));
    let [web] = domain.sheds() else { panic!("{:#?}", domain.sheds()) };
    assert_eq!(web.fleet, Some(FleetReserve { mode: Mode::Enforce, reserve: 200, reserved_for: 0 }));
    assert_eq!(web.workers, Some(Workers::default()));
    assert_eq!(domain.priorities().join(" "), "critical post get test");
}
