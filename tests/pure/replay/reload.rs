//! Reloads of rules within a trace.

use super::support::{Files, RULES, decisions_of, hit, output_text};
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
