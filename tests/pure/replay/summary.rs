//! The summary: totals, and one table of all rules in file order; and the decisions beside it.

use super::support::{Files, RULES, hit, output_text, replay};

#[test]
fn prints_row_for_every_rule() {
    let rules = RULES.to_owned() + "  - {name: quiet, key: [nothing], rate: 1/s}\n";
    let trace = [
        hit("0", "u1"),
        r#"{"t": 0, "domain": "api", "descriptors": [["user", "u1", "ip", "192.0.2.1"]], "cost": 2}"#
            .to_owned()
            + "\n",
        hit("0", "u1"),
        hit("0", "u2"),
        r#"{"t": 0.5, "op": "peek", "domain": "api", "descriptors": [["user", "u3"]]}"#.to_owned() + "\n",
        r#"{"t": 60, "domain": "api", "descriptors": [["ip", "192.0.2.1"]]}"#.to_owned() + "\n",
        r#"{"t": 61, "domain": "api", "descriptors": [["ip", "192.0.2.1"]]}"#.to_owned() + "\n",
        r#"{"t": 61.5, "domain": "nowhere", "descriptors": []}"#.to_owned() + "\n",
        r#"{"t": 61.5, "domain": "api", "descriptors": []}"#.to_owned() + "\n",
    ];
    let output = replay(&rules, &trace.concat(), &[]);
    assert!(output.status.success());
    assert!(output.stdout.is_empty());
    let expected = "\
9 lines over 1m 2s: 7 allowed, 1 limited
1 request for a domain without rules
1 request that no rule matched
rule             passed  refused  would refuse  callers
api/per-user          3        1             0        2
api/per-address       1        0             2        1
api/quiet             0        0             0        0
";
    assert_eq!(output_text(&output), expected);
}

#[test]
fn prints_rules_in_file_order_with_separated_columns() {
    let files = Files::new(&[
        (
            "rules/b.yaml",
            "domain: api\nlimits:\n  - {name: z, key: [user], rate: 1/h}\n  - {name: a, key: [], rate: 10000/s}\n",
        ),
        ("rules/a.yaml", "domain: web\nlimits:\n  - {name: pages, key: [ip], rate: 1/s}\n"),
    ]);
    let trace: String = (0..1_234).map(|user| hit("1732186800.25", &format!("u{user}"))).collect();
    let output = files.replay_input(&trace, &["-", "--rules", "rules"]);
    let expected = "\
1 234 lines over 0 s: 1 234 allowed, 0 limited
rule       passed  refused  would refuse  callers
web/pages       0        0             0        0
api/z       1 234        0             0    1 234
api/a       1 234        0             0        1
";
    assert_eq!(output_text(&output), expected);
}

#[test]
fn counts_no_charge_or_ineffective_op_as_request() {
    let trace = r#"{"t": 0, "op": "hello", "session": "w1", "pool": "web", "slots": 16}
{"t": 1, "op": "acquire", "id": {"n": 1}, "session": "w1", "domain": "api", "descriptors": [["user", "u1"]]}
{"t": 1, "op": "renew", "id": {"n": 1}}
{"t": 1, "op": "signal", "pool": "web", "name": "lag", "permille": 1000}
{"t": 1, "op": "charge", "domain": "api", "descriptors": [["user", "u1"]], "amount": -2}
{"t": 1, "op": "charge", "domain": "api", "descriptors": [["user", "u1"]], "amount": {"requests": 4294967295, "tokens": -4294967295}}
{"t": 1, "op": "charge", "domain": "api", "descriptors": [["nobody", "u1"]], "amount": 1}
{"t": 2, "op": "release", "id": {"n": 1}}
{"t": 3, "op": "release", "id": "never granted", "outcome": "dropped"}
{"t": 4, "op": "bye", "session": "w1"}
"#;
    let output = replay(RULES, trace, &["--decisions", "-"]);
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap().lines().count(), 1);
    let expected = "\
10 lines over 4 s: 1 allowed, 0 limited
1 charge matched no rule
rule             passed  refused  would refuse  callers
api/per-user          1        0             0        1
api/per-address       0        0             0        0
";
    assert_eq!(output_text(&output), expected);
}

#[test]
fn distinguishes_ids_by_text() {
    let lines = |ids: &[&str]| -> String {
        let line =
            |id: &&str| format!(r#"{{"t": 0, "id": {id}, "domain": "api", "descriptors": []}}"#) + "\n";
        ids.iter().map(line).collect()
    };
    let output = replay(RULES, &lines(&["1", "\"1\"", "1.0", "[1]", "{}", "true"]), &[]);
    assert!(output.status.success(), "{}", output_text(&output));
}

#[test]
fn empty_trace_succeeds() {
    let output = replay(RULES, "\n\n", &[]);
    assert!(output.status.success());
    let text = output_text(&output);
    assert!(text.starts_with("0 lines over 0 s: 0 allowed, 0 limited\nrule"), "{text}");
}

#[test]
fn decision_has_every_key_with_t_and_id_unchanged() {
    let trace = r#"{"t": 0, "op": "hello", "session": "w1", "pool": "web", "slots": 16}
{"t": 0.50, "op": "acquire", "id": "a1", "session": "w1", "domain": "api", "descriptors": [["user", "u1"]], "cost": 1, "priority": "post", "idem": "x", "queued_us": 0, "max_wait_us": 0}
{"t": 0.9, "op": "release", "id": "a1", "outcome": "ok"}
{"t": 2.0, "op": "bye", "session": "w1"}
"#;
    let output = replay(RULES, trace, &["--decisions", "-"]);
    let expected = r#"{"t":0.50,"id":"a1","verdict":"allow","rule":"per-user","limit":3,"window_us":1500000,"remaining":2,"reset_us":500000,"retry_us":0,"priority":null,"notes":[],"all":[["per-user",3,1500000,2,500000]]}"#;
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), expected);
}

#[test]
fn seed_changes_no_verdict() {
    let line = |n: u32| hit(&format!("{}.{:03}", n / 100, n % 100 * 10), &format!("u{}", n * 7 % 13));
    let trace: String = (0..2_000).map(line).collect();
    let [without, with] = [&["--decisions", "-"][..], &["--decisions", "-", "--seed", "42"]]
        .map(|arguments| replay(RULES, &trace, arguments));
    assert!(without.status.success() && without.stdout == with.stdout);
}

#[test]
fn rejects_rules_with_errors_before_replay() {
    let output = replay("domain: api\nlimits:\n  - {name: a, key: [user], rate: 1/sec}\n", "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output_text(&output).contains("unknown unit `sec`"));
}

#[test]
fn allows_and_counts_leases_above_session_maximum() {
    let lease =
        |n| format!(r#"{{"t": 0, "op": "acquire", "id": {n}, "domain": "api", "descriptors": []}}"#) + "\n";
    let output = replay(RULES, &(0..1_030).map(lease).collect::<String>(), &["--decisions", "-"]);
    let expected = "\n6 requests passed unjudged: the session held too many leases\n";
    assert!(output_text(&output).contains(expected), "{}", output_text(&output));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1_030);
}
