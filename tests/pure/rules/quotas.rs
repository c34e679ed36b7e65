//! What the fields that say what is admitted mean: algorithms, what is too much, overrides in a list, candidates.

use std::fmt::Write;

use tidegate::limit::{Quota, TickScale};
use tidegate::rules::{Allowance, Limit, OverTreatment, RefusedCost, Rule, read_text};

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
    rules(fields).swap_remove(0)
}

/// The rule and its candidate, if it has one.
#[track_caller]
fn rules(fields: &str) -> Vec<Rule> {
    let text = format!("domain: api\nlimits:\n  - {{name: a, key: [u], {fields}}}\n");
    let loaded = read_text("rules.yaml", &text);
    assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
    loaded.domains[0].rules().to_vec()
}

#[test]
fn every_algorithm_has_its_numbers() {
    let table: &[(&str, &str)] = &[
        ("rate: 100/s", "100/s burst 100"),
        ("rate: 100/s, burst: 500", "100/s burst 500"),
        ("rate: unlimited", "unlimited"),
        ("rate: 5/month", "5/30day burst 5"),
        ("rate: 5/s, algorithm: leaky_bucket", "5/s queue 0"),
        ("rate: 5/s, algorithm: leaky_bucket, queue: 20", "5/s queue 20"),
        ("rate: 5/s, algorithm: leaky_bucket, queue: 0", "5/s queue 0"),
        ("rate: 5/15min, algorithm: sliding_log", "5 log 900s"),
        ("rate: 10000/h, algorithm: sliding_log", "10000 log 3600s"),
        ("rate: 20/h, algorithm: sliding_window", "20 sliding 3600s/10"),
        ("rate: 20/h, algorithm: sliding_window, buckets: 1", "20 sliding 3600s/1"),
        ("rate: 20/month, algorithm: sliding_window, buckets: 60", "20 sliding 2592000s/60"),
        // Faster than a bucket can tell apart, and nothing to a window.
        ("rate: 1999999/s, algorithm: sliding_window", "1999999 sliding 1s/10"),
        ("rate: 5/min, algorithm: fixed_window", "5 fixed Nanos(60000000000) on Unix"),
        ("rate: 5/min, algorithm: fixed_window, align: utc", "5 fixed Nanos(60000000000) on Unix"),
        ("rate: 5/min, algorithm: fixed_window, align: first", "5 fixed Nanos(60000000000) on Boot"),
        ("rate: 5/2month, algorithm: fixed_window", "5 fixed Months(2) on Unix"),
        (
            "rate: 5/day, algorithm: fixed_window, timezone: Europe/Berlin",
            "5 fixed Nanos(86400000000000) on Unix",
        ),
        ("rate: 5/month, algorithm: fixed_window, timezone: asia/tokyo", "5 fixed Months(1) on Unix"),
        ("rate: 36/36h, algorithm: fixed_window, align: first", "36 fixed Nanos(129600000000000) on Boot"),
    ];
    for (fields, expected) in table {
        assert_eq!(limit(&rule(fields).limit), *expected, "{fields}");
    }
}

#[test]
fn a_window_knows_whose_midnight_it_ends_at() {
    let quota = |fields: &str| match rule(fields).limit.quota().unwrap() {
        Quota::FixedWindow(quota) => quota.clone(),
        other => panic!("{other:?}"),
    };
    let utc = quota("rate: 5/day, algorithm: fixed_window");
    for other in ["timezone: UTC", "align: utc", "timezone: Etc/UTC"] {
        let other = quota(&format!("rate: 5/day, algorithm: fixed_window, {other}"));
        assert_eq!(utc.describe_windows(), other.describe_windows());
    }
    for other in ["timezone: Europe/Berlin", "align: first"] {
        let other = quota(&format!("rate: 5/day, algorithm: fixed_window, {other}"));
        assert_ne!(utc.describe_windows(), other.describe_windows());
    }
}

#[test]
fn what_is_too_much_has_its_numbers() {
    let table: &[(&str, &str)] = &[
        ("rate: 100/s, over: refuse", "100/s burst 100"),
        ("rate: 100/s, burst: 55, over: {soft: 10%}", "100/s burst 55 soft 100/s burst 60"),
        ("rate: 100/s, over: {soft: 12.5%, for: 60s}", "100/s burst 100 soft 100/s burst 112 for 60s"),
        ("rate: 20/h, algorithm: sliding_log, over: {soft: 1000%}", "20 log 3600s soft 220 log 3600s"),
        (
            "rate: 19/h, algorithm: sliding_window, over: {soft: 10%}",
            "19 sliding 3600s/10 soft 20 sliding 3600s/10",
        ),
        (
            "rate: 10/min, algorithm: fixed_window, over: {soft: 10%}",
            "10 fixed Nanos(60000000000) on Unix soft 11 fixed Nanos(60000000000) on Unix",
        ),
        ("rate: 100/s, over: {elastic: 100%}", "100/s burst 100 elastic 100/s burst 100"),
        ("rate: 100/s, burst: 55, over: {elastic: 10%}", "100/s burst 55 elastic 10/s burst 5"),
        // Half of one a second is one in two, not one.
        ("rate: 1/s, over: {elastic: 50%}", "1/s burst 1 elastic 1/2s burst 1"),
        ("rate: 3/min, over: {elastic: 0.1%}", "3/min burst 3 elastic 3/1000min burst 1"),
        ("rate: 5/h, algorithm: sliding_log, over: {elastic: 50%}", "5 log 3600s elastic 2 log 3600s"),
        ("rate: 5/h, algorithm: sliding_log, over: {elastic: 1%}", "5 log 3600s elastic 1 log 3600s"),
        ("rate: 5/h, algorithm: sliding_log, refused: counted", "5 log 3600s counted"),
        ("rate: 5/h, algorithm: sliding_log, refused: free", "5 log 3600s"),
        ("rate: 5/h, block: 15min", "5/h burst 5 block 900s"),
        ("rate: 5/h, max_debt: 0", "5/h burst 5 debt 0"),
        ("rate: 5/h, burst: 9, max_debt: 100", "5/h burst 9 debt 100"),
    ];
    for (fields, expected) in table {
        assert_eq!(limit(&rule(fields).limit), *expected, "{fields}");
    }
}

#[test]
fn overrides_have_numbers_and_equal_ones_share_them() {
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
fn all_rates_of_a_rule_are_on_one_scale() {
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
    assert_eq!(
        scales("rate: 3/s, algorithm: leaky_bucket, overrides: [{match: {p: a}, rate: 7/s}]"),
        [ticks(21), ticks(21)]
    );
    // The share counts as well: 3.3 a second.
    assert_eq!(scales("rate: 11/s, over: {elastic: 30%}"), [ticks(33), ticks(33)]);
    assert_eq!(
        scales("rate: 9/s, overrides: [{match: {p: a}, rate: 11/s}, {match: {p: b}, rate: 7/s}]"),
        [TickScale::FINEST; 3]
    );
}

#[test]
fn a_candidate_says_what_differs() {
    let table: &[(&str, &str)] = &[
        ("rate: 20/s, burst: 50, candidate: {rate: 10/s}", "10/s burst 50"),
        ("rate: 20/s, candidate: {rate: 10/s}", "10/s burst 10"),
        ("rate: 20/s, candidate: {burst: 5}", "20/s burst 5"),
        ("rate: 20/s, block: 1s, max_debt: 3, candidate: {burst: 5}", "20/s burst 5 debt 3 block 1s"),
        ("rate: 20/s, block: 1s, candidate: {block: 2s}", "20/s burst 20 block 2s"),
        ("rate: 20/s, over: {soft: 10%}, candidate: {over: refuse}", "20/s burst 20"),
        ("rate: 20/s, burst: 50, candidate: {algorithm: sliding_log}", "20 log 1s"),
        (
            "rate: 20/s, burst: 50, candidate: {algorithm: sliding_log, rate: 5/s, refused: counted}",
            "5 log 1s counted",
        ),
        ("rate: 20/s, over: {soft: 10%}, candidate: {algorithm: leaky_bucket, queue: 3}", "20/s queue 3"),
        (
            "rate: 20/s, over: {soft: 10%, for: 1s}, candidate: {algorithm: sliding_log}",
            "20 log 1s soft 22 log 1s for 1s",
        ),
        ("rate: 5/s, algorithm: leaky_bucket, queue: 3, candidate: {rate: 6/s}", "6/s queue 3"),
        (
            "rate: 5/s, algorithm: leaky_bucket, queue: 3, candidate: {algorithm: token_bucket, burst: 9}",
            "5/s burst 9",
        ),
        (
            "rate: 5/h, algorithm: sliding_window, buckets: 3, refused: counted, candidate: {rate: 6/h}",
            "6 sliding 3600s/3 counted",
        ),
        (
            "rate: 5/h, algorithm: sliding_window, refused: counted, candidate: {algorithm: token_bucket}",
            "5/h burst 5",
        ),
        (
            "rate: 5/h, algorithm: sliding_window, refused: counted, candidate: {refused: free}",
            "5 sliding 3600s/10",
        ),
        (
            "rate: 5/month, algorithm: fixed_window, timezone: Europe/Berlin, candidate: {rate: 6/month}",
            "6 fixed Months(1) on Unix",
        ),
        (
            "rate: 5/day, algorithm: fixed_window, timezone: Europe/Berlin, candidate: {align: first}",
            "5 fixed Nanos(86400000000000) on Boot",
        ),
        (
            "rate: 5/h, algorithm: fixed_window, align: first, candidate: {timezone: Europe/Berlin}",
            "5 fixed Nanos(3600000000000) on Unix",
        ),
        ("rate: unlimited, candidate: {rate: 10/s}", "10/s burst 10"),
        ("rate: 10/s, burst: 5, candidate: {rate: unlimited}", "unlimited"),
        // Overridden keys keep the rate of their override; the numbers are the same in both.
        (
            "rate: 20/s, overrides: [{match: {p: a}, rate: 20/s}, {match: {p: b}, rate: 7/s, burst: 9}, \
             {match: {p: c}, rate: unlimited}], candidate: {rate: 10/s, algorithm: sliding_log}",
            "10 log 1s | 20 log 1s | 7 log 1s | unlimited",
        ),
        (
            "rate: 20/s, algorithm: sliding_log, overrides: [{match: {p: b}, rate: 7/s, burst: 9}], \
             candidate: {algorithm: token_bucket}",
            "20/s burst 20 | 7/s burst 9",
        ),
    ];
    for (fields, expected) in table {
        let [rule, candidate] = &*rules(fields) else { panic!("{fields}") };
        assert_eq!(limit(&candidate.limit), *expected, "{fields}");
        assert_eq!(candidate.limit.allowances.len(), rule.limit.allowances.len(), "{fields}");
    }
}

#[test]
fn what_else_a_rule_says_is_kept() {
    let plain = rule("rate: 1/s");
    assert_eq!((plain.unit, plain.warn_at, plain.refund_on, plain.advertise), (None, None, None, true));
    assert!(plain.show_keys.is_empty() && plain.overrides.is_none());
    let full =
        rule("rate: 1/s, unit: tokens, warn_at: 12.5%, refund_on: ok, advertise: false, show_keys: [u]");
    assert_eq!((full.unit.as_deref(), full.warn_at, full.advertise), (Some("tokens"), Some(125), false));
    assert!(full.refund_on.is_some());
    assert_eq!(full.show_keys, [Box::from("u")]);
    let usual = rule("rate: 1/s, unit: requests, warn_at: 100%, advertise: true, show_keys: []");
    assert_eq!((usual.unit, usual.warn_at, usual.advertise), (None, Some(1_000), true));
}
