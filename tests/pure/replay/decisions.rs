//! The decisions of a trace's requests, in virtual time, and their output format.

use super::support::{RULES, decisions, replay};

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
fn uses_time_of_the_trace() {
    // A burst of three, the fourth waits half a second to the microsecond; a peek takes no units.
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
fn notes_shadow_rules_and_decides_units_separately() {
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
fn rejects_rules_with_errors_before_replay() {
    let output = replay("domain: api\nlimits:\n  - {name: a, key: [user], rate: 1/sec}\n", "", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("unknown unit `sec`"));
}

#[test]
fn seed_changes_no_verdict() {
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
