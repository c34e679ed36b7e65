//! What works and was perhaps not meant: warnings, each in one file once or at its node.

use super::problems::warnings;

/// Line, a part of the message, a part of the mend.
#[track_caller]
fn check(descriptors: &str, expected: &[(u32, &str, &str)]) {
    warnings("tree.yaml", &format!("domain: api\ndescriptors:\n{descriptors}"), expected);
}

#[test]
fn fields_without_effect_are_told_once_in_a_file() {
    let node = |fields: &str| format!("- {{key: k, {fields}, rate_limit: {{unlimited: true}}}}\n");
    check(&node("quota_mode: true"), &[]);
    check(&node("detailed_metric: true"), &[(3, "`detailed_metric` has no effect", "by rule")]);
    check(&node("value_to_metric: true"), &[(3, "`value_to_metric` has no effect", "by rule")]);
    check(&node("metadata: {a: b}"), &[(3, "`metadata` has no effect", "replies carry none")]);
    check(&node("quota_mode: false, detailed_metric: , metadata: ~"), &[]);
    check(
        "- {key: a, detailed_metric: true, metadata: {}}\n- key: b\n  descriptors:\n  - {key: c, detailed_metric: true}\n  - {key: d, detailed_metric: true}\n",
        &[
            (3, "`detailed_metric` has no effect, 3 times in this file", ""),
            (3, "`metadata` has no effect", ""),
        ],
    );
}

#[test]
fn a_limit_that_refuses_all_by_an_oversight() {
    let node = |limit: &str| format!("- {{key: k, rate_limit: {{{limit}}}}}\n");
    let told = "without `requests_per_unit` every request is refused";
    check(&node("unit: day"), &[(3, told, "`requests_per_unit: 0` if none is meant")]);
    check(&node("unit: day, requests_per_unit: "), &[(3, told, "how many may pass")]);
    check(&node("unit: day, requests_per_unit: 0"), &[]);
    check(&node("unlimited: true"), &[]);
    check(
        &node("unlimited: true, requests_per_unit: 5"),
        &[(3, "no effect beside `unlimited`", "one of the two")],
    );
    check(
        &node("unlimited: true, unit: none"),
        &[(3, "`unit` has no effect beside `unlimited`", "leave it out")],
    );
}

#[test]
fn a_shadow_of_nothing() {
    for field in ["shadow_mode", "quota_mode"] {
        let told = format!("`{field}` has no effect on a descriptor without `rate_limit`");
        check(&format!("- {{key: k, {field}: true}}\n"), &[(3, &told, "do not inherit")]);
        check(&format!("- {{key: k, {field}: false}}\n"), &[]);
    }
}

#[test]
fn warns_of_stars_that_the_pinned_service_takes_as_they_are() {
    let node = |value: &str| format!("- {{key: k, value: '{value}', rate_limit: {{unlimited: true}}}}\n");
    for value in ["*b", "a*b", "a*b*", "**"] {
        let told = format!("the pattern `k_{value}` has a star that is not its end");
        check(&node(value), &[(3, &told, "before v1.4.1-0.20260312062621-6bcd4d2f8eda")]);
    }
    check(&node("a*"), &[]);
    check(&node("*"), &[]);
}

#[test]
fn what_is_replaced_has_a_name() {
    let told = "no limit is named `b` in this domain";
    let node =
        |key: &str, limit: &str| format!("- {{key: {key}, rate_limit: {{unlimited: true, {limit}}}}}\n");
    check(&node("k", "replaces: [{name: b}]"), &[(3, told, "`name` of another `rate_limit`")]);
    check(&format!("{}{}", node("k", "replaces: [{name: b}]"), node("l", "name: b")), &[]);
    // Not the name of a rule, nor of a node.
    check(&format!("{}{}", node("k", "replaces: [{name: b}]"), node("b", "name: c")), &[(3, told, "")]);
}

#[test]
fn what_no_request_can_say() {
    let node = |fields: &str| format!("- {{{fields}}}\n");
    check(
        &node("key: a/b"),
        &[(3, "no request has this key: the name of an entry may not hold '/'", "leave out")],
    );
    check(&node("key: 'a:b', value: c"), &[(3, "no request has this key", "leave out")]);
    // The key of a request may end sooner.
    check(&node("key: a_b/c"), &[]);
    check(&node("key: a, value: b/c"), &[]);
    check(&node("key: 'a/b*'"), &[]);
    check(&node(&format!("key: {}", "x".repeat(65))), &[(3, "has 65 bytes", "at most 64")]);
    let long = "x".repeat(1_025);
    check(
        &node(&format!("key: a, value: {long}")),
        &[(3, "no request has this value: it has 1025 bytes", "1024")],
    );
    let mut deep = String::new();
    for depth in 0..18 {
        let more = if depth < 17 { "descriptors:" } else { "" };
        deep.push_str(&format!("{0}- key: k\n{0}  {more}\n", "  ".repeat(depth)));
    }
    check(&deep, &[(35, "no request reaches this: a descriptor has at most 16 entries", "nest less")]);
}
