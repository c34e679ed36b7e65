//! Reloads of rules within a trace, and bad lines, which stop it; `diagnostics/traces.txt` has all of them.

use super::support::{Files, RULES, decisions, decisions_of, hit, output_text, replay};
use crate::problems::has;

const TIGHT: &str = "\
domain: api
limits:
  - {name: per-plan, key: [plan], rate: 1/s}
  - {name: per-user, key: [user], rate: 1/min, burst: 1}
";

fn reload(t: &str, rules: &str) -> String {
    format!(r#"{{"t": {t}, "op": "reload", "rules": "{rules}"}}"#) + "\n"
}

#[test]
fn reload_applies_to_later_lines_with_paths_relative_to_trace() {
    let trace = [
        hit("0", "u1"),
        hit("0", "u1"),
        reload("0", "other"),
        hit("0", "u2"),
        hit("0", "u2"),
        reload("1", "../api.yaml"),
        hit("1", "u1"),
    ];
    let files = Files::new(&[
        ("api.yaml", RULES),
        ("traces/other/api.yaml", TIGHT),
        ("traces/trace.jsonl", &trace.concat()),
    ]);
    let output = files.replay(&["traces/trace.jsonl", "--rules", "api.yaml", "--decisions", "-"]);
    let verdicts: Vec<_> =
        decisions_of(&output).iter().map(|decision| decision["verdict"].to_string()).collect();
    assert_eq!(verdicts, ["\"allow\"", "\"allow\"", "\"allow\"", "\"limit\"", "\"allow\""]);
    // Counts and callers continue under the same name with another number, and a removed rule keeps its row.
    let expected = "\
7 lines over 1 s: 4 allowed, 1 limited
rule             passed  refused  would refuse  callers
api/per-user          4        1             0        2
api/per-address       0        0             0        0
api/per-plan          0        0             0        0
";
    assert_eq!(output_text(&output), expected);
}

#[test]
fn failed_reload_keeps_rules_and_reports() {
    let bad = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/sec}\n";
    let table = [
        ("bad.yaml", "unknown unit `sec`", "their domains stay as they are"),
        ("nowhere", "cannot read the rules", "those in force stay"),
    ];
    for (rules, reason, stay) in table {
        let trace: String = [hit("0", "u1"), reload("0", rules), hit("0", "u1")].concat();
        let files = Files::new(&[("api.yaml", RULES), ("bad.yaml", bad), ("trace.jsonl", &trace)]);
        let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--decisions", "-"]);
        assert!(output.status.success());
        assert_eq!(decisions_of(&output)[1]["remaining"], 1, "the old rule, with what was left of it");
        let output_text = output_text(&output);
        has(&output_text, &[reason, &format!("\nline 2: the rules to reload have errors: {stay}\n")]);
    }
}

#[test]
fn reload_swaps_each_domain_separately() {
    let mail = |rate: &str| format!("domain: mail\nlimits:\n  - {{name: all, key: [], rate: {rate}}}\n");
    let mailed = r#"{"t": 0, "domain": "mail", "descriptors": []}"#.to_owned() + "\n";
    let trace = [mailed.clone(), reload("0", "other"), mailed, hit("0", "u1")].concat();
    let files = Files::new(&[
        ("rules/api.yaml", RULES),
        ("rules/mail.yaml", &mail("1/h")),
        ("other/api.yaml", "domain: api\nlimits: [{name: per-user}]\n"),
        ("other/mail.yaml", &mail("9/h")),
        ("trace.jsonl", &trace),
    ]);
    let output = files.replay(&["trace.jsonl", "--rules", "rules", "--decisions", "-"]);
    let limits: Vec<_> = decisions_of(&output).iter().map(|decision| decision["limit"].to_string()).collect();
    assert_eq!(limits, ["1", "9", "3"], "mail is new, api is what it was");
}

#[test]
fn reload_paths_of_piped_trace_start_at_current_directory() {
    let files = Files::new(&[("api.yaml", RULES), ("tight.yaml", TIGHT)]);
    let trace = [reload("0", "tight.yaml"), hit("0", "u1"), hit("0", "u1")].concat();
    let output = files.replay_input(&trace, &["-", "--rules", "api.yaml"]);
    let text = output_text(&output);
    assert!(text.starts_with("3 lines over 0 s: 1 allowed, 1 limited\n"), "{text}");
}

#[test]
fn stops_at_bad_line_with_its_number() {
    check(&[
        (r#"{"t": 0.5, "domain": "api", "descriptors": []}"#, "line 3: `t` is 0.5, before the line above"),
        ("nonsense", "line 3: not a line of a trace"),
    ]);
}

/// Each bad line is third, after a good one and an empty one.
fn check(table: &[(&str, &str)]) {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    for (bad, expected) in table {
        // An empty line counts and is skipped.
        let output = replay(RULES, &format!("{good}\n\n{bad}\n{good}\n"), &[]);
        let bad: String = bad.chars().take(120).collect();
        let output_text = output_text(&output);
        assert!(output_text.contains(expected), "{bad}: {output_text}");
        assert_eq!(output.status.code(), Some(1), "{bad}");
        // The lines before it are summed up.
        let summed = ["api/per-user", "1", "0", "0", "1"];
        assert!(output_text.lines().any(|line| line.split_whitespace().eq(summed)), "{output_text}");
    }
}

#[test]
fn enforces_bounds_of_the_socket() {
    let hit = |rest: &str| format!(r#"{{"t": 1, "domain": "api", "descriptors": {rest}}}"#);
    let pairs = |count: usize| format!("[{}]", vec![r#""user", "u""#; count].join(", "));
    let value = |bytes: usize| format!(r#"["user", "{}"]"#, "v".repeat(bytes));
    let many = |count: usize| hit(&format!("[[{}]]", vec![&value(1_020)[1..1_031]; count].join(", ")));
    let longest = "an attribute value in descriptors must be a text of at most 1024 bytes";
    check(&[
        (&hit(&format!("[{}]", value(1_025))), longest),
        (&hit(&format!("[{}]", pairs(17))), "a descriptor is a flat list"),
        (&hit(&format!("[{}]", ["[]"; 9].join(", "))), "a descriptor is a flat list"),
        (&many(16), "16384"),
        (&"x".repeat(1 << 20), "longer than 1024 KiB"),
    ]);
    // At the bounds themselves.
    for good in [
        hit(&format!("[{}]", vec![pairs(16); 8].join(", "))),
        hit(&format!("[{}]", value(1_024))),
        hit(r#"[], "cost": {"größe": 4294967295, "b": 0, "c": 1}, "priority": "größte""#),
        many(15),
    ] {
        let output = replay(RULES, &good, &[]);
        assert!(output.status.success(), "{}", output_text(&output));
    }
}

#[test]
fn rejects_line_with_invalid_utf8() {
    let files = Files::new(&[("api.yaml", RULES)]);
    std::fs::write(files.path("trace.jsonl"), b"{\"t\": 1, \"domain\": \"\xff\", \"descriptors\": []}\n")
        .unwrap();
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml"]);
    let words = "line 1: not a line of a trace: invalid unicode code point (column ";
    assert_eq!((output.status.code(), output_text(&output).contains(words)), (Some(1), true), "{output:?}");
}

#[test]
fn reads_seconds_of_at_most_nine_places() {
    let line = |t: &str| format!(r#"{{"t": {t}, "domain": "api", "descriptors": [["user", "u1"]]}}"#);
    for t in ["0", "0.5", "1.000000001", "0.1", "1732186800.123456789", "18446744073.709551615"] {
        let output = replay(RULES, &line(t), &[]);
        assert!(output.status.success(), "{t}: {}", output_text(&output));
    }
    for t in ["1.0000000001", "1e3", "-1", "\"1\"", "null", "18446744073.709551616"] {
        let output = output_text(&replay(RULES, &line(t), &[]));
        assert!(output.contains(&format!("`t` is `{t}`: write seconds from 0")), "{t}: {output}");
    }
    // A float would round these to the same time.
    let rules = "domain: api\nlimits:\n- {name: per-user, key: [user], rate: 1/s, burst: 1}\n";
    let times = ["1732186800.123456789", "1732186801.123456788", "1732186801.123456789"];
    let decisions = decisions(rules, &times.map(line).join("\n"));
    let verdicts: Vec<_> = decisions.iter().map(|decision| &decision["verdict"]).collect();
    assert_eq!(verdicts, ["allow", "limit", "allow"]);
}
