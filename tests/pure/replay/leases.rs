//! Leases: concurrency, refunds, retries, and the end of a session.

use super::support::{decisions, output_text, replay};

const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 10/h}
  - {name: logins, match: {job: login}, key: [user], algorithm: fixed_window, rate: 2/h, refund_on: ok}
concurrency:
  - {name: exports, match: {job: export}, key: [org], max: 1}
";

fn line(t: &str, op: &str, id: &str, rest: &str) -> String {
    format!(r#"{{"t": {t}, "op": "{op}", "id": "{id}", "domain": "api"{rest}}}"#) + "\n"
}

fn acquire(t: &str, id: &str, user: &str, job: &str) -> String {
    acquire_with(t, id, user, job, "")
}

fn acquire_with(t: &str, id: &str, user: &str, job: &str, rest: &str) -> String {
    let descriptors = format!(r#", "descriptors": [["user", "{user}", "job", "{job}", "org", "o"]]{rest}"#);
    line(t, "acquire", id, &descriptors)
}

/// `VERDICT RULE LEFT`, where `LEFT` is the remaining quota of `per-user`.
fn found(trace: &[String]) -> Vec<String> {
    let found = |decision: &serde_json::Value| {
        let all = decision["all"].as_array().unwrap();
        let user =
            all.iter().find(|entry| entry[0] == "per-user").map_or(0, |entry| entry[3].as_u64().unwrap());
        format!(
            "{} {} {user}",
            decision["verdict"].as_str().unwrap(),
            decision["rule"].as_str().unwrap_or("-")
        )
    };
    decisions(RULES, &trace.concat()).iter().map(found).collect()
}

#[test]
fn unreleased_lease_expires_on_time() {
    let trace = [
        acquire("0.5", "a", "u", "export"),
        acquire("60.499999999", "b", "u", "export"),
        acquire("60.5", "c", "u", "export"),
        // A renewal restarts its time.
        line("100", "renew", "c", ""),
        acquire("159.999999999", "d", "u", "export"),
        acquire("160", "e", "u", "export"),
    ];
    // A refusal by concurrency charges no rate.
    let expected =
        ["allow exports 9", "limit exports 9", "allow exports 8", "limit exports 8", "allow exports 7"];
    assert_eq!(found(&trace), expected);
}

#[test]
fn refunds_successes_and_counts_release_once() {
    let login = |t: &str, id: &str| acquire(t, id, "ann", "login");
    let trace = [
        login("0", "a"),
        line("1", "release", "a", r#", "outcome": "ok""#),
        line("1", "release", "a", r#", "outcome": "ok""#),
        login("2", "b"),
        line("3", "release", "b", r#", "outcome": "error""#),
        login("4", "c"),
        line("4", "release", "c", ""),
        line("4", "release", "never granted", ""),
        login("5", "d"),
        // It was refused, so it has no lease.
        line("6", "release", "d", r#", "outcome": "ok""#),
        login("6", "e"),
    ];
    let expected = ["allow logins 9", "allow logins 8", "allow logins 7", "limit logins 7", "limit logins 7"];
    assert_eq!(found(&trace), expected);
}

#[test]
fn bye_ends_leases_of_the_session() {
    let hello = r#"{"t": 0, "op": "hello", "session": "w", "pool": "web", "slots": 4}"#.to_owned() + "\n";
    let trace = [
        hello.clone(),
        hello,
        acquire_with("0", "a", "u", "export", r#", "session": "w""#),
        acquire("0", "b", "u", "export"),
        r#"{"t": 1, "op": "bye", "session": "w"}"#.to_owned() + "\n",
        acquire("1", "c", "u", "export"),
        line("1", "release", "a", ""),
        acquire("1", "d", "u", "export"),
    ];
    assert_eq!(found(&trace), ["allow exports 9", "limit exports 9", "allow exports 8", "limit exports 8"]);
}

#[test]
fn allows_and_counts_leases_above_session_maximum() {
    let trace: String = (0..1_030).map(|n| acquire("0", &format!("{n}"), &format!("u{n}"), "x")).collect();
    let output = replay(RULES, &trace, &["--decisions", "-"]);
    assert!(output.status.success());
    assert!(
        output_text(&output).contains("\n6 requests passed unjudged: the session held too many leases\n"),
        "{}",
        output_text(&output)
    );
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1_030);
}
