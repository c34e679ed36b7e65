//! `tidegate replay`: the daemon's own engine on a trace, in virtual time. The real program, run on small files.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::process::{Command, Output};

use serde_json::Value;

/// Runs a trace under rules.
fn replay(rules: &str, trace: &str, arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("api.yaml");
    std::fs::write(&file, rules).unwrap();
    let path = directory.path().join("trace.jsonl");
    std::fs::write(&path, trace).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("replay").arg(&path).arg("--rules").arg(&file).args(arguments).output().unwrap()
}

fn decisions(rules: &str, trace: &str) -> Vec<Value> {
    let output = replay(rules, trace, &["--decisions", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 2/s, burst: 3}
  - {name: per-address, key: [ip], rate: 1/min, mode: shadow}
";

#[test]
fn a_decision_has_every_key_and_t_and_id_as_written() {
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
fn time_is_that_of_the_trace() {
    // Three at once, the fourth waits half a second to the microsecond; a peek takes nothing.
    let lines = [
        ("1732186800", "hit", "allow", 0),
        ("1732186800", "hit", "allow", 0),
        ("1732186800.000000001", "hit", "allow", 0),
        ("1732186800.000000001", "hit", "limit", 500_000),
        ("1732186800.25", "peek", "limit", 250_000),
        ("1732186800.499999999", "hit", "limit", 1),
        ("1732186800.5", "peek", "allow", 0),
        ("1732186800.5", "hit", "allow", 0),
        ("1732186800.5", "hit", "limit", 500_000),
        ("1732190400", "hit", "allow", 0),
    ];
    let trace: String = lines
        .iter()
        .map(|(t, op, ..)| {
            format!(r#"{{"t": {t}, "op": "{op}", "domain": "api", "descriptors": [["user", "u1"]]}}"#) + "\n"
        })
        .collect();
    let decisions = decisions(RULES, &trace);
    assert_eq!(decisions.len(), lines.len());
    for (decision, (t, op, verdict, retry_us)) in decisions.iter().zip(lines) {
        assert_eq!(
            (&decision["verdict"], &decision["retry_us"]),
            (&verdict.into(), &retry_us.into()),
            "{op} at {t}"
        );
    }
}

#[test]
fn a_gap_of_years_is_no_work() {
    let trace = r#"{"t": 0, "domain": "api", "descriptors": [["user", "u1"]], "cost": 3}
{"t": 4000000000.5, "domain": "api", "descriptors": [["user", "u1"]], "cost": 3}
"#;
    assert!(decisions(RULES, trace).iter().all(|decision| decision["verdict"] == "allow"));
}

#[test]
fn shadow_rules_are_noted_and_units_are_judged_apart() {
    let trace = r#"{"t": 0, "domain": "api", "descriptors": [["ip", "192.0.2.1"]]}
{"t": 0, "domain": "api", "descriptors": [["ip", "192.0.2.1"]], "cost": {"tokens": 9, "requests": 1}}
{"t": 0, "domain": "api", "descriptors": [["ip", "192.0.2.1"]], "cost": {"tokens": 9}}
{"t": 0, "domain": "nowhere", "descriptors": []}
"#;
    let decisions = decisions(RULES, trace);
    let notes: Vec<_> = decisions.iter().map(|decision| decision["notes"].to_string()).collect();
    assert_eq!(notes, ["[]", r#"["shadow","per-address"]"#, "[]", "[]"]);
    let all: Vec<_> = decisions.iter().map(|decision| decision["all"].as_array().unwrap().len()).collect();
    assert_eq!(all, [1, 1, 0, 0]);
    assert!(decisions.iter().all(|decision| decision["rule"].is_null() && decision["verdict"] == "allow"));
}

#[test]
fn a_bad_line_stops_with_its_number() {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let table = [
        (r#"{"t": 0.5, "domain": "api", "descriptors": []}"#, "line 3: `t` is 0.5, before the line above"),
        (r#"{"t": 1.0000000001, "domain": "api", "descriptors": []}"#, "line 3: `t` is 1.0000000001"),
        (r#"{"t": "1", "domain": "api", "descriptors": []}"#, "line 3: `t` is \"1\""),
        (r#"{"domain": "api", "descriptors": []}"#, "line 3: not a line of a trace: missing field `t`"),
        ("nonsense", "line 3: not a line of a trace"),
        (r#"{"t": 1, "descriptors": []}"#, "line 3: hit needs `domain`"),
        (r#"{"t": 1, "domain": "api"}"#, "line 3: hit needs `descriptors`"),
        (r#"{"t": 1, "op": "acquire", "domain": "api", "descriptors": []}"#, "line 3: acquire needs `id`"),
        (r#"{"t": 1, "domain": "api", "descriptors": [], "id": 1}"#, "line 3: id 1 was used before"),
        (r#"{"t": 1, "domain": "a:b", "descriptors": []}"#, "line 3: domain must be a name"),
        (r#"{"t": 1, "domain": "api", "descriptors": [["user"]]}"#, "line 3: a descriptor is a flat list"),
        (
            r#"{"t": 1, "op": "charge", "domain": "api", "descriptors": []}"#,
            "line 3: op `charge` is not supported yet",
        ),
        (r#"{"t": 1, "op": "hti", "domain": "api", "descriptors": []}"#, "line 3: unknown op `hti`"),
    ];
    for (bad, expected) in table {
        // An empty line counts and is passed over.
        let output = replay(RULES, &format!("{good}\n\n{bad}\n{good}\n"), &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{bad}: {said}");
        assert_eq!(output.status.code(), Some(1), "{bad}");
        // What was played before it is summed up.
        let summed = ["api/per-user", "1", "0", "0"];
        assert!(said.lines().any(|line| line.split_whitespace().eq(summed)), "{said}");
    }
}

#[test]
fn rules_with_errors_are_told_and_nothing_is_played() {
    let output = replay("domain: api\nlimits:\n  - {name: a, key: [user], rate: 1/sec}\n", "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("unknown unit `sec`"));
}

#[test]
fn a_seed_changes_no_verdict() {
    let trace: String = (0..2_000)
        .map(|n| {
            format!(
                r#"{{"t": {}.{:03}, "domain": "api", "descriptors": [["user", "u{}"]]}}"#,
                n / 100,
                n % 100 * 10,
                n * 7 % 13
            ) + "\n"
        })
        .collect();
    let verdicts = |arguments: &[&str]| {
        let output = replay(RULES, &trace, &[&["--decisions", "-"], arguments].concat());
        assert!(output.status.success());
        output.stdout
    };
    assert_eq!(verdicts(&[]), verdicts(&["--seed", "42"]));
}
