//! `concurrency`: what rules mean, what bad ones are told, what changes say.

use std::fs;

use tidegate::limit::Quota;
use tidegate::rules::{Difference, Limit, read, read_text};

use super::bad::{Told, check as check_errors};
use super::problems::warnings;

/// The allowances of a limit: `-` is unlimited.
fn most(limit: &Limit) -> String {
    let most = limit.allowances.iter().map(|allowance| match allowance.as_ref().map(|own| &own.quota) {
        Some(Quota::Concurrency(quota)) if !quota.is_fleet() => quota.max().to_string(),
        None => "-".to_owned(),
        Some(other) => panic!("{other:?}"),
    });
    most.collect::<Vec<_>>().join(" ")
}

/// The fields of one rule: its allowances, those of its candidate, and when its work expires in seconds.
#[track_caller]
fn check(fields: &str, allowances: &str, candidate: Option<&str>, expires_s: u64) {
    let loaded = warnings("rules.yaml", &format!("domain: api\nconcurrency:\n  - {{{fields}}}\n"), &[]);
    let rule = &loaded.domains[0].rules()[0];
    assert_eq!(most(&rule.limit), allowances, "{fields}");
    assert_eq!(
        loaded.domains[0].rules().get(1).map(|rule| most(&rule.limit)).as_deref(),
        candidate,
        "{fields}"
    );
    assert_eq!(rule.expires.unwrap().as_secs(), expires_s, "{fields}");
}

/// The fields of one rule, in flow style: they start at line 3, column 6.
#[track_caller]
fn check_bad(fields: &str, expected: Told<'_>) {
    check_errors(&format!("domain: api\nconcurrency:\n  - {{{fields}}}\n"), &[expected]);
}

#[test]
fn a_rule_means_what_it_says() {
    check("name: a, key: [user], max: 20", "20", None, 60);
    check("name: a, key: [], max: 1, expires: 2h", "1", None, 7_200);
    check("name: a, key: [], max: 4294967295, expires: 1s", "4294967295", None, 1);
    check("name: a, key: [], max: 1, expires: 7day", "1", None, 604_800);
    check("name: a, key: [], max: 1, expires: 1week", "1", None, 604_800);
    check("name: a, key: [u], max: 9, candidate: {max: 5}", "9", Some("5"), 60);
    check("name: a, key: [u], max: unlimited, candidate: {max: 5}", "-", Some("5"), 60);
    let overrides = "overrides: [{match: {p: x}, max: 50}, {match: {p: y}, max: unlimited}]";
    check(&format!("name: a, key: [u], max: 9, {overrides}"), "9 50 -", None, 60);
    let candidate = "candidate: {max: 3}";
    check(&format!("name: a, key: [u], max: 9, {overrides}, {candidate}"), "9 50 -", Some("3 50 -"), 60);
}

#[test]
fn rules_stand_in_file_order_with_the_limits_and_share_their_fields() {
    let text = "domain: api\nconcurrency:\n- {name: a, match: {job: export}, key: [{attribute: org, lowercase: true}], max: 2, mode: shadow, \
                help: see, advertise: false, warn_at: 50%, show_keys: [org], scope: host}\nlimits:\n- {name: b, key: [], rate: 1/s}\n";
    let loaded = warnings("rules.yaml", text, &[]);
    let rules = loaded.domains[0].rules();
    let names: Vec<_> = rules.iter().map(|rule| (&*rule.name, rule.expires.is_some())).collect();
    assert_eq!(names, [("a", true), ("b", false)]);
    let a = &rules[0];
    assert_eq!(
        (a.mode.name(), a.help.as_deref(), a.advertise, a.warn_at),
        ("shadow", Some("see"), false, Some(500))
    );
    assert!(a.key[0].transform.lowercase && a.conditions.len() == 1 && *a.show_keys[0] == *"org");
}

#[test]
fn a_table_has_a_column_for_the_most() {
    let load = |table: &str| {
        let directory = tempfile::tempdir().unwrap();
        let rules = "domain: api\nconcurrency:\n- {name: a, key: [org], max: 2, overrides_file: t.csv}\n";
        fs::write(directory.path().join("rules.yaml"), rules).unwrap();
        fs::write(directory.path().join("t.csv"), table).unwrap();
        read(directory.path())
    };
    let loaded = load("max,org\n5,acme\nunlimited,house\n5,other\n");
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let rule = &loaded.domains[0].rules()[0];
    assert_eq!(most(&rule.limit), "2 5 -");
    let number = |org: &str| rule.overrides.as_ref().unwrap().rows.number_of([org].into_iter());
    assert_eq!(
        [number("acme"), number("house"), number("other"), number("x")],
        [Some(1), Some(2), Some(1), None]
    );
    let table: &[(&str, &str, &str)] = &[
        ("org,rate\nacme,5/s\n", "unknown column `rate`", "org,max"),
        ("org\nacme\n", "no column `max`", "org,max"),
        ("org,max,burst\nacme,5,5\n", "`burst` is a field of `token_bucket`", "leave it out"),
        ("org,max\nacme,0\n", "`max` is 0", "`deny`"),
        ("org,max\nacme,5/s\n", "`max`: `5/s` is not a whole number", "digits"),
        ("org,max\nacme,5\nacme,6\n", "a second row for the key `acme`", "line 2"),
        ("", "the table is empty", "org,max"),
    ];
    for (text, message, mend) in table {
        let loaded = load(text);
        let told = loaded.problems.iter().find(|problem| problem.message.contains(message));
        let told = told.unwrap_or_else(|| panic!("{text}: {:#?}", loaded.problems));
        assert!(told.mend.as_deref().unwrap().contains(mend) && loaded.domains.is_empty(), "{text}: {told}");
    }
}

#[test]
fn what_is_wrong_is_told_where_and_how() {
    let table: &[(&str, Told<'_>)] = &[
        ("name: a, key: []", (3, 5, "a concurrency rule needs `max`", "write `max: 20`")),
        ("key: [], max: 1", (3, 5, "a concurrency rule needs `name`", "")),
        ("name: a, max: 1", (3, 5, "a concurrency rule needs `key`", "")),
        ("name: a, key: [], max: 0", (3, 29, "`max` is 0: nothing would ever pass", "`deny`")),
        ("name: a, key: [], max: -1", (3, 29, "`-1` is negative", "at least 1")),
        ("name: a, key: [], max: 1.5", (3, 29, "`1.5` is not a whole number", "digits")),
        ("name: a, key: [], max: 5/s", (3, 29, "`5/s` is not a whole number", "digits")),
        ("name: a, key: [], max: '5'", (3, 29, "a number, not the text `5`", "without quotes")),
        ("name: a, key: [], max: [5]", (3, 29, "`max` is a number, not a list", "whole number")),
        ("name: a, key: [], max: ", (3, 27, "`max` is a number, not nothing", "")),
        ("name: a, key: [], max: 4294967296", (3, 29, "too large", "at most 4294967295")),
        ("name: a, key: [], max: 1, expires: 999ms", (3, 41, "`expires: 999ms` is too short", "1s to 7day")),
        ("name: a, key: [], max: 1, expires: 8day", (3, 41, "`expires: 8day` is too long", "1s to 7day")),
        ("name: a, key: [], max: 1, expires: 60", (3, 41, "`expires: 60` has no unit", "write 60s")),
        ("name: a, key: [], max: 1, expires: 0s", (3, 41, "`expires` is no time at all", "")),
        ("name: a, key: [], max: 1, expires: never", (3, 41, "`expires` is a number and a unit", "60s")),
        ("name: a, key: [], max: 1, expries: 60s", (3, 32, "unknown field `expries`", "`expires`?")),
        ("name: a, key: [], max: 1, warn_at: 0%", (3, 41, "`warn_at` is 0%", "")),
        ("name: a, key: [], max: 1, fleet: {}", (3, 32, "`fleet` says how hosts share", "`scope: fleet`")),
        (
            "name: a, key: [], max: 1, scope: fleet, fleet: {on_miss: admit}",
            (3, 63, "`on_miss: admit` does not go with `max`", "leave `on_miss` out"),
        ),
        (
            "name: a, key: [], max: 1, scope: fleet, candidate: {max: 2}",
            (3, 46, "`candidate` does not go with `scope: fleet`", "`mode: shadow`"),
        ),
        ("name: a, key: [], max: 1, candidate: {}", (3, 43, "a candidate needs `max`", "{max: 10}")),
        ("name: a, key: [], max: 1, candidate: {max: 0}", (3, 49, "`max` is 0", "")),
        (
            "name: a, key: [], max: 1, candidate: {rate: 1/s, max: 2}",
            (3, 44, "`rate` does nothing in a candidate", "`limits`"),
        ),
        ("name: a, key: [], max: 1, overrides: [{max: 2}]", (3, 44, "an override needs `match`", "")),
        (
            "name: a, key: [], max: 1, overrides: [{match: {p: x}}]",
            (3, 44, "an override needs `max`", "`max: unlimited`"),
        ),
        ("name: a, key: [], max: 1, overrides: [{match: {p: x}, max: 0}]", (3, 65, "`max` is 0", "`deny`")),
        ("name: a, key: [], max: 1, overrides: {max: 2}", (3, 43, "`overrides` is a list", "max: 50")),
    ];
    for (fields, expected) in table {
        check_bad(fields, *expected);
    }
    check_errors(
        "domain: api\nlimits:\n- {name: a, key: [], rate: 1/s}\nconcurrency:\n- {name: a, key: [], max: 1}\n- b\n",
        &[
            (5, 10, "a second rule named `a`", "the first is at rules.yaml:3:10"),
            (6, 3, "a concurrency rule is a mapping, not a text", "`name: …`"),
        ],
    );
    check_errors(
        "domain: api\nconcurrency: {name: a}\n",
        &[(2, 14, "`concurrency` is a list, not a mapping", "start each rule with a dash")],
    );
}

#[test]
fn fields_of_a_rate_are_told_where_they_belong() {
    let fields = "algorithm rate burst queue buckets align timezone unit over refused block max_debt refund_on max_over";
    for field in fields.split(' ') {
        let message = format!("`{field}` does nothing in a concurrency rule");
        let told = (3, 32, &*message, "it stands in a rule of `limits`: move it there, or leave it out");
        check_bad(&format!("name: a, key: [], max: 1, {field}: 1"), told);
    }
    for field in ["max", "expires"] {
        let message = format!("`{field}` does nothing in a rule");
        let told: Told<'_> = (3, 35, &message, "it stands in a rule of `concurrency`");
        check_errors(
            &format!("domain: api\nlimits:\n  - {{name: a, key: [], rate: 1/s, {field}: 1}}\n"),
            &[told],
        );
    }
}

#[test]
fn what_was_perhaps_not_meant() {
    let check = |rules: &str, expected: &[(u32, &str, &str)]| {
        warnings("rules.yaml", &format!("domain: api\nconcurrency:\n{rules}"), expected);
    };
    check(
        "- {name: a, key: [], max: unlimited}\n",
        &[(3, "the rule refuses no request", "leave the rule out")],
    );
    check("- {name: a, key: [], max: 2, candidate: {max: 2}}\n", &[(3, "says what its rule says", "")]);
    check("- {name: a, match: {u: x}, key: [u], max: 2}\n", &[(3, "`u` is always `x` here", "")]);
    let two =
        |more: &str| format!("- {{name: a, key: [u], max: 2}}\n- {{name: b, key: [u], max: 3{more}}}\n");
    check(&two(""), &[(4, "`b` never refuses what `a` passes", "keep one")]);
    // Work of the other ends later: it may still be counted when that of the first is not.
    check(&two(", expires: 2h"), &[]);
    check(&two(", warn_at: 50%"), &[]);
    check("- {name: a, key: [u], max: 2}\nlimits: [{name: b, key: [u], rate: 3/s}]\n", &[]);
    check(
        "- {name: a, match: {p: x}, key: [], max: 2}\nexempt: [{name: e, match: {p: x}}]\n",
        &[(3, "`a` is never reached", "narrow")],
    );
}

#[test]
fn a_refund_belongs_to_what_can_be_given_back() {
    let rule = |fields: &str| {
        format!("domain: api\nlimits:\n  - {{name: a, key: [], rate: 5/h, refund_on: ok, {fields}}}\n")
    };
    for algorithm in ["token_bucket", "fixed_window", "sliding_log", "sliding_window"] {
        warnings("rules.yaml", &rule(&format!("algorithm: {algorithm}")), &[]);
    }
    // What is paced has started: giving its place back would start the next too soon.
    check_errors(
        &rule("algorithm: leaky_bucket"),
        &[(3, 35, "`refund_on` is a field of `token_bucket`, `fixed_window`", "leave `refund_on` out")],
    );
}

#[test]
fn changes_are_told_with_both_values() {
    let lines = |before: &str, after: &str| {
        let [before, after] = [before, after].map(|rule| {
            read_text("t.yaml", &format!("domain: api\nconcurrency:\n- {{name: a, key: [u], {rule}}}\n"))
        });
        assert!(!before.has_errors() && !after.has_errors());
        Difference::between(&before.domains, &after.domains).lines().collect::<Vec<_>>()
    };
    assert_eq!(lines("max: 2", "max: 2, expires: 1min"), Vec::<String>::new());
    assert_eq!(lines("max: 2", "max: 3"), ["api/a: max 2 → 3"]);
    assert_eq!(lines("max: 2", "max: unlimited"), ["api/a: max 2 → unlimited"]);
    assert_eq!(lines("max: 2", "max: 2, expires: 2h"), ["api/a: expires 1m → 2h"]);
    assert_eq!(
        lines("max: 2", "max: 2, candidate: {max: 1}"),
        ["api/a@candidate: added: key [u], max 1, expires 1m, mode shadow, advertise false"]
    );
    let overrides = "max: 2, overrides: [{match: {p: x}, max: 9}, {match: {p: y}, max: unlimited}]";
    assert_eq!(lines("max: 2", overrides), ["api/a: overrides none → {p: x} max 9; {p: y} unlimited"]);
}
