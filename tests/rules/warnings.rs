//! What works and was perhaps not meant.

use tidegate::rules::read_text;

#[track_caller]
fn check(rules: &[&str], expected: &[(u32, &str, &str)]) {
    let rules = rules.iter().map(|rule| format!("- {{{rule}}}\n")).collect::<String>();
    let text = format!("domain: api\nlimits:\n{rules}");
    let loaded = read_text("rules.yaml", &text);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let found = loaded.problems.iter().map(|warning| format!("{warning}\n")).collect::<String>();
    assert_eq!(loaded.problems.len(), expected.len(), "{text}\n{found}");
    for (warning, (line, message, mend)) in loaded.problems.iter().zip(expected) {
        assert_eq!(warning.position.line, *line, "{text}\n{found}");
        assert!(warning.message.contains(message), "{message:?} in\n{found}");
        assert!(warning.mend.as_deref().unwrap().contains(mend), "{mend:?} in\n{found}");
    }
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
