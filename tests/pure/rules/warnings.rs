//! What works and was perhaps not meant.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use super::problems::warnings;

#[track_caller]
fn check(rules: &[&str], expected: &[(u32, &str, &str)]) {
    let rules = rules.iter().map(|rule| format!("- {{{rule}}}\n")).collect::<String>();
    let loaded = warnings("rules.yaml", &format!("domain: api\nlimits:\n{rules}"), expected);
    assert_eq!(loaded.domains.len(), 1);
}

#[test]
fn a_days_worth_of_tokens_lets_two_days_worth_through() {
    let days = "a token bucket of 10000/day lets up to 20000 through in one day";
    check(&["name: a, key: [], rate: 10000/day"], &[(3, days, "fixed_window")]);
    check(
        &["name: a, key: [], rate: 10/week, burst: 5"],
        &[(3, "lets up to 15 through in one week", "burst")],
    );
    check(&["name: a, key: [], rate: 10/month"], &[(3, "lets up to 20 through in one 30day", "")]);
    check(&["name: a, key: [], rate: 10/24h"], &[(3, "10/day", "")]);
    check(&["name: a, key: [], rate: 10/23h"], &[]);
}

#[test]
fn a_rounded_rate_says_by_how_much() {
    check(&["name: a, key: [], rate: 1009/s"], &[(3, "kept slow by one part in 264462809", "up to 128")]);
    check(
        &[
            "name: a, key: [], rate: 1000/s",
            "name: b, key: [u], rate: 7/s",
            "name: c, key: [v], rate: 127/min",
        ],
        &[],
    );
}

#[test]
fn a_value_or_a_key_that_says_nothing() {
    check(
        &["name: a, match: {u: ''}, key: [], rate: 1/s"],
        &[(3, "an empty value of `u` never matches", "absent")],
    );
    check(&["name: a, match: {u: x}, key: [u], rate: 1/s"], &[(3, "`u` is always `x` here", "`key`")]);
    check(&["name: a, match: {u: [x, y]}, key: [u], rate: 1/s"], &[]);
    check(&["name: a, match: {u: 'x*'}, key: [u], rate: 1/s"], &[]);
}

#[test]
fn a_rule_that_never_refuses_what_another_passes() {
    let keep = "keep one";
    let a = "name: a, key: [u], rate: 10/s";
    check(&[a, "name: b, key: [u], rate: 10/s"], &[(4, "`b` never refuses what `a` passes", keep)]);
    check(
        &[a, "name: b, key: [u], rate: 600/min, burst: 10"],
        &[(4, "`b` never refuses what `a` passes", keep)],
    );
    check(&["name: b, key: [u], rate: 100/s", a], &[(3, "`b` never refuses what `a` passes", keep)]);
    check(&[a, "name: b, key: [u], rate: 100/s, mode: shadow"], &[(4, "`b` never", keep)]);
    check(
        &[
            "name: a, match: {m: [x, y], n: z}, key: [u, v], rate: 1/s",
            "name: b, match: {n: z, m: [y, x, y]}, key: [v, u], rate: 2/s",
        ],
        &[(4, "`b` never refuses what `a` passes", keep)],
    );
    // Each of these refuses something that the other passes.
    check(&[a, "name: b, key: [u], rate: 100/s, burst: 5"], &[]);
    check(&[a, "name: b, key: [u], rate: 1/s, burst: 50"], &[]);
    check(&[a, "name: b, key: [v], rate: 100/s"], &[]);
    check(&[a, "name: b, key: [], rate: 100/s"], &[]);
    check(&[a, "name: b, match: {m: x}, key: [u], rate: 100/s"], &[]);
    check(&["name: a, key: [u], rate: 10/s, mode: shadow", "name: b, key: [u], rate: 100/s"], &[]);
    check(&["name: a, key: [u], rate: 10/s, mode: disabled", "name: b, key: [u], rate: 100/s"], &[]);
    check(&[a, "name: b, key: [u], rate: 100/s, mode: disabled"], &[]);
}

#[test]
fn two_rules_are_compared_only_where_they_count_alike() {
    let log = "name: a, key: [u], rate: 10/h, algorithm: sliding_log";
    let never = "`b` never refuses what `a` passes";
    check(&[log, "name: b, key: [u], rate: 20/h, algorithm: sliding_log"], &[(4, never, "keep one")]);
    check(
        &[log, "name: b, key: [u], rate: 5/h, algorithm: sliding_log"],
        &[(3, "`a` never refuses what `b`", "")],
    );
    let fixed = "key: [u], rate: 10/day, algorithm: fixed_window, timezone: Europe/Berlin";
    check(&[&format!("name: a, {fixed}"), &format!("name: b, {fixed}")], &[(4, never, "")]);
    let window = "key: [u], rate: 10/h, algorithm: sliding_window";
    check(&[&format!("name: a, {window}"), &format!("name: b, {window}, buckets: 10")], &[(4, never, "")]);
    let apart = [
        (log, "name: b, key: [u], rate: 20/2h, algorithm: sliding_log"),
        (log, "name: b, key: [u], rate: 20/h"),
        (log, "name: b, key: [u], rate: 20/h, algorithm: sliding_window"),
        (log, "name: b, key: [u], rate: 20/h, algorithm: sliding_log, unit: tokens"),
        (log, "name: b, key: [u], rate: 20/h, algorithm: sliding_log, refused: counted"),
        (log, "name: b, key: [u], rate: 20/h, algorithm: sliding_log, block: 1h"),
        (log, "name: b, key: [u], rate: 20/h, algorithm: sliding_log, over: {soft: 10%}"),
        (log, "name: b, key: [u], rate: 20/h, algorithm: sliding_log, warn_at: 50%"),
        (
            log,
            "name: b, key: [u], rate: 20/h, algorithm: sliding_log, overrides: [{match: {p: x}, rate: 1/h}]",
        ),
        (
            "name: a, key: [u], rate: 10/h, algorithm: sliding_log, overrides: [{match: {p: x}, rate: 90/h}]",
            "name: b, key: [u], rate: 20/h, algorithm: sliding_log",
        ),
        (
            "name: a, key: [u], rate: 10/day, algorithm: fixed_window",
            "name: b, key: [u], rate: 10/day, algorithm: fixed_window, timezone: Europe/Berlin",
        ),
        (
            "name: a, key: [u], rate: 10/h, algorithm: leaky_bucket",
            "name: b, key: [u], rate: 10/h, algorithm: leaky_bucket",
        ),
        (
            "name: a, key: [u], rate: 10/h, algorithm: sliding_window, buckets: 1",
            "name: b, key: [u], rate: 10/h, algorithm: sliding_window",
        ),
    ];
    for (one, other) in apart {
        check(&[one, other], &[]);
    }
}

#[test]
fn what_a_limit_says_that_was_perhaps_not_meant() {
    check(
        &["name: a, key: [], rate: unlimited"],
        &[(3, "the rule refuses no request", "leave the rule out")],
    );
    check(&["name: a, key: [], rate: unlimited, overrides: [{match: {p: x}, rate: 1/s}]"], &[]);
    check(&["name: a, key: [], rate: 1/s, candidate: {rate: 1/s}"], &[(3, "says what its rule says", "")]);
    check(&["name: a, key: [], rate: 1/s, candidate: {rate: 60/min}"], &[]);
    check(
        &["name: a, key: [], rate: 9/h, candidate: {rate: 5/day}"],
        &[(3, "a token bucket of 5/day lets up to 10 through in one day", "`algorithm: fixed_window`")],
    );
    check(
        &["name: a, key: [], rate: 9/h, overrides: [{match: {p: x}, rate: 5/day}]"],
        &[(3, "a token bucket of 5/day lets up to 10 through in one day", "fixed_window")],
    );
    check(&["name: a, key: [], rate: 5/day, algorithm: fixed_window"], &[]);
    check(&["name: a, key: [], rate: 5/day, algorithm: sliding_log, candidate: {rate: 4/day}"], &[]);
    check(
        &["name: a, key: [], rate: 1/s, overrides: [{match: {}, rate: 2/s}, {match: {p: x}, rate: 3/s}]"],
        &[(3, "this override matches every request", "put it last")],
    );
    check(
        &["name: a, key: [], rate: 1/s, overrides: [{match: {p: x}, rate: 3/s}, {match: {}, rate: 2/s}]"],
        &[],
    );
    check(&["name: a, key: [], rate: 1/s, refund_on: ok"], &[]);
    check(
        &["name: a, key: [], rate: 10/s, over: {soft: 5%}"],
        &[(3, "`soft: 5%` of 10 is nothing", "at least 10%")],
    );
}

#[test]
fn rates_that_are_not_exact_together_say_by_how_much() {
    let overrides = "overrides: [{match: {p: x}, rate: 11/s}, {match: {p: y}, rate: 7/s}]";
    check(
        &[&format!("name: a, key: [], rate: 9/s, {overrides}")],
        &[(3, "is not exact: it is kept slow by one part in", "up to 128")],
    );
    check(
        &[&format!("name: a, key: [], rate: 1/s, {overrides}, candidate: {{algorithm: sliding_log}}")],
        &[],
    );
    check(
        &["name: a, key: [], rate: 1/s, overrides: [{match: {p: x}, rate: 1009/s}]"],
        &[(3, "the rate 1009/s is not exact", "up to 128")],
    );
}

#[test]
fn bands_and_reserves_that_come_to_all_of_a_few_slots() {
    let check = |fields: &str, expected: &[(u32, &str, &str)]| {
        let text = format!(
            "domain: api\npriorities: [critical, post, get, test]\nshed:\n- {{pool: web, {fields}}}\n"
        );
        assert_eq!(warnings("rules.yaml", &text, expected).domains.len(), 1);
    };
    let rounded = "write at most 75% for it: bands are rounded up to whole slots";
    let of_four = "of `slots: 4` the band of `get`, `post` is all: the brake keeps no slot free of that";
    check("slots: 4, brake: {}", &[(4, of_four, rounded)]);
    check("slots: 4, brake: {bands: [25%, 50%, 75%]}", &[]);
    // 75.1 % of four is more than three.
    check("slots: 4, brake: {bands: [25%, 50%, 75.1%]}", &[(4, "the band of `post` is all", rounded)]);
    // Whoever writes 100 % means all.
    check("slots: 4, brake: {bands: [25%, 50%, 100%]}", &[]);
    check("slots: 10, brake: {}", &[]);
    check("slots: 9, brake: {}", &[(4, "of `slots: 9` the band of `post` is all", "at most 88%")]);
    check("slots: 1, brake: {}", &[(4, "`test`, `get`, `post` is all", "leave `brake` out")]);
    // The processes say how many.
    check("brake: {}", &[]);
    let none = "of `slots: 4` a reserve of 80% leaves none to other work: all of it is refused";
    check("slots: 4, fleet: {reserve: 80%}", &[(4, none, "write a smaller `reserve`")]);
    check("slots: 4, fleet: {reserve: 75%}", &[]);
    check("slots: 1, fleet: {reserve: 0.1%}", &[(4, "of `slots: 1` a reserve of 0.1%", "")]);
}

#[test]
fn what_is_written_and_can_have_no_effect() {
    let check = |text: &str, expected: &[(u32, &str, &str)]| {
        warnings("rules.yaml", &format!("domain: api\npriorities: [critical, get]\n{text}"), expected);
    };
    let elastic = "limits:\n- {key: [], rate: 9/s,\n   name: a, over: {elastic: 100%}}\n";
    let never = "the elastic part of `a` is never used: no pool is shed";
    check(elastic, &[(5, never, "`{pool: web, workers: {}}`")]);
    check(
        "limits:\n- {name: a, key: [], rate: 9/s, candidate: {over: {elastic: 9%}}}\n",
        &[(4, "the elastic part of `a@candidate` is never used", "an entry of `shed`")],
    );
    check("limits:\n- {name: a, key: [], rate: 9/s, over: {soft: 20%}}\n", &[]);
    // Any part will do, for its pool is looked at all the same.
    check(&format!("{elastic}shed:\n- {{pool: web, queue_age: {{}}}}\n"), &[]);
}

#[test]
fn what_has_an_effect_through_another_domain_is_not_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let told = || {
        let loaded = tidegate::rules::read(folder.path());
        let warnings = loaded.problems.iter().filter(|problem| !problem.is_error());
        warnings.map(|problem| problem.message.clone()).collect::<Vec<_>>()
    };
    put("a.yaml", "domain: a\nlimits: [{name: a, key: [], rate: 9/s, over: {elastic: 9%}}]\n");
    assert!(told()[0].starts_with("the elastic part of `a` is never used"), "{:?}", told());
    put("b.yaml", "domain: b\nshed: [{pool: web, queue_age: {}, signals: {cpu: {use: true}}}]\n");
    assert_eq!(told(), Vec::<String>::new());
    // What cannot be read may hold what is missing.
    put("b.yaml", "domain: b\nshed: [{pool: web, queue_age: {}, signals: {cpu: {use: maybe}}}]\n");
    assert_eq!(told(), Vec::<String>::new());
}
