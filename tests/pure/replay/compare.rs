//! The same trace under two rule sets, side by side.

use super::support::{Files, RULES, decisions_of, hit, output_text};

const OTHER: &str = "\
domain: api
limits:
  - {name: per-address, key: [ip], rate: 1/min}
  - {name: new, key: [user], rate: 1/s, burst: 2}
";

fn trace() -> String {
    let address = |t: &str| {
        format!(r#"{{"t": {t}, "domain": "api", "descriptors": [["user", "u9", "ip", "192.0.2.1"]]}}"#) + "\n"
    };
    [
        hit("0", "u1"),
        hit("0", "u1"),
        r#"{"t": 0, "op": "peek", "domain": "api", "descriptors": [["user", "u1"]]}"#.to_owned() + "\n",
        hit("0", "u1"),
        hit("0", "u1"),
        r#"{"t": 0, "op": "reload", "rules": "nowhere"}"#.to_owned() + "\n",
        address("10"),
        address("10"),
        address("11"),
        r#"{"t": 12, "domain": "api", "descriptors": [["user", "u7"]], "cost": 3}"#.to_owned() + "\n",
    ]
    .concat()
}

#[test]
fn compare_prints_both_results_and_changes() {
    let files = Files::new(&[("api.yaml", RULES), ("other/api.yaml", OTHER), ("trace.jsonl", &trace())]);
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--compare", "other"]);
    assert!(output.status.success());
    let expected = "\
10 lines over 12 s
1 reload passed over: two rule sets are compared
rules: 7 allowed, 1 limited
other: 3 allowed, 5 limited
4 requests changed: 4 allowed → refused, 0 refused → allowed; the first:
  line 4: allowed → refused (new)
  line 8: allowed → refused (per-address)
  line 9: allowed → refused (per-address)
  line 10: allowed → refused (new)
rule             passed  other  +/-  refused  other  +/-  would refuse  other  +/-
api/per-user          7      -   -7        1      -   -1             0      -    =
api/per-address       1      1    =        0      2   +2             2      0   -2
api/new               -      5   +5        -      3   +3             -      0    =
";
    assert_eq!(output_text(&output), expected);
}

#[test]
fn compare_prints_decisions_of_first_rules() {
    let files = Files::new(&[("api.yaml", RULES), ("other.yaml", OTHER)]);
    let alone = files.replay_input(
        &trace().replace("nowhere", "api.yaml"),
        &["-", "--rules", "api.yaml", "--decisions", "-"],
    );
    let both = files
        .replay_input(&trace(), &["-", "--rules", "api.yaml", "--compare", "other.yaml", "--decisions", "-"]);
    assert_eq!(decisions_of(&alone).len(), 9);
    assert_eq!(String::from_utf8(alone.stdout).unwrap(), String::from_utf8(both.stdout).unwrap());
}

#[test]
fn groups_newly_allowed_requests_by_refusing_rule() {
    let trace: String = (0..20).map(|_| hit("0", "u1")).collect();
    let loose = RULES.replace("burst: 3", "burst: 15");
    let files = Files::new(&[("api.yaml", RULES), ("loose.yaml", &loose), ("trace.jsonl", &trace)]);
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--compare", "loose.yaml"]);
    // Ten are shown, all are counted; no columns for shadow rules unless one refused.
    let lines = (4..14).map(|line| format!("  line {line}: refused → allowed (per-user)\n"));
    let expected = format!(
        "\
20 lines over 0 s
rules: 3 allowed, 17 limited
other: 15 allowed, 5 limited
12 requests changed: 0 allowed → refused, 12 refused → allowed; the first:
{}rule             passed  other  +/-  refused  other  +/-
api/per-user          3     15  +12       17      5  -12
api/per-address       0      0    =        0      0    =
",
        lines.collect::<String>()
    );
    assert_eq!(output_text(&output), expected);
}

#[test]
fn equal_rules_change_nothing() {
    // Time passes before both.
    let trace = trace() + &hit("100", "u1");
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", &trace)]);
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--compare", "api.yaml"]);
    assert!(output_text(&output).contains("\nno request changed its verdict\n"), "{}", output_text(&output));
    let text = output_text(&output);
    let is_equal = |line: &&str| line.starts_with("api/") && line.matches("  =").count() == 3;
    assert_eq!(text.lines().filter(is_equal).count(), 2);
}

#[test]
fn rejects_other_rules_with_errors_before_replay() {
    let files =
        Files::new(&[("api.yaml", RULES), ("bad.yaml", "domain: api\nlimits: [{}]\n"), ("trace.jsonl", "")]);
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--compare", "bad.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let text = output_text(&output);
    assert!(text.contains("bad.yaml") && !text.contains("lines over"), "{text}");
}
