//! Internal errors and invalid files: they are reported, and requests are allowed.

use crate::prelude::*;

/// A HIT that makes a debug build panic in the decision.
pub(crate) fn panicking(id: u64) -> Value {
    json!([3, id, "api", [["user", "u1", "debug-panic", "1"]]])
}

#[test]
#[cfg(debug_assertions)]
fn panic_closes_only_its_connection() {
    let daemon = daemon();
    let mut bystander = daemon.greeted();
    assert_eq!(verdict_of(&bystander.ask(&hit(1, "u1"))), 0);
    // Frames with and without a decision.
    let signal = json!([7, 3, "web", "debug-panic", 500]);
    for panics in [panicking(3), signal].iter().cycle().take(20) {
        let mut wire = daemon.greeted();
        let frames = [frame(&json!([8, 2])), frame(panics), frame(&json!([8, 4]))].concat();
        wire.send_bytes(&frames);
        let replies = wire.hear_all();
        assert_eq!(replies.len(), 2, "what came before is answered, what follows is not: {replies:?}");
        assert_eq!(replies[0], json!([2, 2, true]));
        assert_eq!(error_of(&replies[1]), (Some(3), 10));
        bystander.assert_served();
    }
    daemon.await_log(&["ERROR panicked", "src/engine/decider.rs:"]);
    // Two statements log each panic, with eight lines each in ten seconds.
    for words in ["ERROR panicked: ", "ERROR a request panicked"] {
        let lines = || daemon.log().matches(words).count();
        wait_until("the lines are written", || lines() >= 8);
        // A busy machine may take longer.
        assert!(lines() == 8 || daemon.log().contains("suppressed="), "{}", daemon.log());
    }
    // Nothing was charged, no lock is held, the limits hold.
    for left in (0..4).rev() {
        assert_eq!(daemon.greeted().ask(&hit(9, "u1"))[6], left);
    }
    assert_eq!(verdict_of(&bystander.ask(&hit(10, "u1"))), 1);
}

#[test]
#[cfg(debug_assertions)]
fn panic_under_locks_leaves_consistent_state() {
    let rules = "domain: api\nlimits:\n- {name: per-user, key: [user], rate: 1/h, burst: 5}\n\
                 concurrency: [{name: jobs, key: [user], max: 2}]\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    let locked = json!([["user", "u1", "debug-panic", "locked"]]);
    for _ in 0..20 {
        // An ACQUIRE with an idempotency key: its state, permit, lease and key are all in progress.
        let mut wire = daemon.greeted();
        let reply = wire.ask(&json!([1, 3, "api", locked, 1, null, {"idem": "once"}]));
        assert_eq!(error_of(&reply), (Some(3), 10));
    }
    // The same states: nothing was charged, no permit is taken, no lock is held.
    let mut wire = daemon.greeted();
    let acquire = |id: u64| json!([1, id, "api", [["user", "u1"]], 1, null, {"idem": format!("{id}")}]);
    let verdicts = [5, 6, 7].map(|id| verdict_of(&wire.ask(&acquire(id))));
    assert_eq!(verdicts, [0, 0, 1], "two places, and no more");
    assert_eq!(wire.ask(&hit(9, "u1"))[6], 2);
    let status = daemon.json("status");
    assert_eq!((&status["panics"], &status["leases"]["held"]), (&json!(20), &json!(2)));
}

#[test]
fn bad_rules_disable_limits_of_their_domain_only() {
    let bad = "domain: bad\nlimits:\n  - {name: one, key: [user], rate: 1/h, brust: 1}\n";
    let daemon = Plan::new().rules("bad.yaml", bad).start();
    let mut wire = daemon.greeted();
    for id in 0..20 {
        let reply = wire.ask(&json!([3, id, "bad", [["user", "u1"]]]));
        assert_eq!((verdict_of(&reply), &reply[3]), (0, &json!(null)), "{reply}");
    }
    assert_eq!(wire.allowed("u1", 6), 5);
    // The error, its position and its consequence.
    daemon.await_log(&["ERROR", "bad.yaml:3", "brust"]);
    daemon.await_log(&["ERROR", "domain=bad", "NO LIMITS"]);
}

#[test]
fn serves_and_warns_without_rules() {
    let missing = Plan::new();
    fs::remove_dir_all(missing.path("rules")).unwrap();
    let empty = Plan::new();
    fs::remove_file(empty.path("rules").join("api.yaml")).unwrap();
    for daemon in [missing.start(), empty.start()] {
        daemon.await_log(&["WARN", "no rule is in force: everything is allowed", "rules"]);
        let mut wire = daemon.greeted();
        assert!((0..20).all(|id| verdict_of(&wire.ask(&hit(id, "u1"))) == 0));
    }
}

#[test]
fn refuses_start_and_reports_line_of_bad_settings() {
    let table = [
        ("mode: sometimes", 2, "sometimes"),
        ("threads: 2\nconections: {max: 3}", 3, "conections"),
        ("connections: {max: none}", 2, "none"),
    ];
    for (settings, line, word) in table {
        let plan = Plan::new().settings(settings);
        let (code, log) = plan.refused();
        assert_eq!(code, Some(1), "{settings}: {log}");
        has(&log, &[&format!("tidegate.yaml:{line}:"), word]);
        assert!(!plan.socket().exists());
    }
}

#[test]
fn logs_missed_decisions_by_reason() {
    let mut daemon = daemon();
    let mut wire = daemon.connect();
    wire.ask(&json!([0, 1, 1, {"missed": {"unreachable": 11, "timeout": 12}}]));
    daemon.await_log(&["WARN", "without tidegate", "unreachable=11", "timeout=12", "breaker=0"]);
    // Any request with options reports; the daemon logs the sums, at the latest at its stop.
    let missed = json!({"missed": {"protocol": 20, "callback": 1, "something_new": 5}});
    for request in [
        json!([3, 2, "api", [["user", "u1"]], 1, null, missed]),
        json!([4, 3, "api", [["user", "u1"]], 1, null, missed]),
        json!([1, 4, "unknown", [], 1, null, missed]),
        json!([5, 5, "api", [["user", "u1"]], 1, missed]),
        json!([5, 5, "api", [["user", "u1"]], 1, {"missed": {"breaker": u64::MAX}}]),
        json!([5, 5, "api", [["user", "u1"]], 1, {"missed": {"breaker": u64::MAX}}]),
    ] {
        wire.ask(&request);
    }
    daemon.stop();
    let log = daemon.log();
    let sum = |reason: &str| -> u64 {
        let words = log.split_whitespace().filter_map(|word| word.strip_prefix(reason)?.strip_prefix('='));
        words.map(|count| count.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(
        (sum("unreachable"), sum("timeout"), sum("protocol"), sum("callback")),
        (11, 12, 80, 4),
        "{log}"
    );
    assert!(log.contains(&format!("breaker={}", u64::MAX)), "{log}");
    // A function that raised is no decision without the daemon.
    let raised = log.lines().find(|line| line.contains("callback=4")).unwrap();
    assert!(raised.contains("functions of an application raised") && !raised.contains("without tidegate"));
}

#[test]
fn logs_json_lines_when_configured() {
    let daemon: Daemon = Plan::new().settings("log: {format: json}").start_when("\"serving\"");
    assert_eq!(daemon.connect().ask(&hello())[0], 0);
    let lines: Vec<Value> = daemon.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"] == "serving"), "{lines:?}");
}
