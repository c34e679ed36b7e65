//! A scrape is exact, complete from the start, and within its size bound.

use super::open_metrics::{Metrics, read};
use crate::prelude::*;

pub(crate) fn scrape(daemon: &Daemon) -> Metrics {
    let answer = get(daemon, "/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("application/openmetrics-text; version=1.0.0"), "{}", answer.head);
    read(&answer.body)
}

/// Every kind of item that has counters by name.
pub(crate) const EVERYTHING: &str = "\
domain: app
priorities: [critical, get]
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 3, warn_at: 60%, candidate: {rate: 1/h, burst: 1}}
  - {name: quiet, key: [user], rate: 1/h, burst: 1, mode: shadow}
  - {name: shared, key: [tenant], rate: 1/h, burst: 20, scope: fleet}
concurrency: [{name: exports, match: {job: export}, key: [user], max: 1, expires: 1h}]
shed:
  - pool: web
    queue_age: {others: 500ms, critical: 2500ms}
    workers: {}
    fleet: {reserve: 1%}
    signals: {load: {use: false, map: [[0%, 0%], [100%, 100%]]}}
";

/// Sends HELLO with some info.
pub(crate) fn greet(daemon: &Daemon, info: &Value) -> Wire {
    let mut wire = daemon.connect();
    let welcome = wire.ask(&json!([0, 1, 1, info]));
    assert_eq!(welcome[0], 0, "{welcome}");
    wire
}

#[test]
fn serves_every_series_at_zero_from_the_start() {
    let daemon = Plan::new().rules("app.yaml", EVERYTHING).start();
    let before = scrape(&daemon);
    let constant = "tidegate_mode tidegate_thread_running tidegate_rules fleet_bound tidegate_build _seconds memory \
                    resident_bytes signal severity";
    for (series, value) in &before.series {
        let is_zero = *value == 0.0 || constant.split(' ').any(|word| series.contains(word));
        assert!(is_zero, "{series} {value}");
    }
    // Traffic creates no new series.
    let mut wire =
        greet(&daemon, &json!({"client": "python/1", "pool": "web", "slots": 2, "missed": {"timeout": 2}}));
    for attributes in [json!(["user", "a"]), json!(["path", "/healthz"]), json!(["agent", "bot"]), json!([])]
    {
        for _ in 0..5 {
            wire.ask(&json!([3, 1, "app", [attributes]]));
        }
    }
    wire.ask(&json!([1, 2, "app", [["job", "export", "user", "b"]], 1, "get"]));
    wire.ask(&json!([3, 3, "app", [["user", "c"]], 1, "critical", {"queued_us": 9_000_000}]));
    wire.ask(&json!([3, 3, "nowhere", [["user", "c"]]]));
    wire.ask(&json!([77, 3]));
    wire.ask(&json!([7, 1, "web", "load", 400]));
    let after = scrape(&daemon);
    let names = |metrics: &Metrics| metrics.series.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after));
}

#[test]
fn counts_checks_under_their_rule_and_priority() {
    let daemon = Plan::new().rules("app.yaml", EVERYTHING).start();
    let mut wire = greet(&daemon, &json!({"pool": "web", "slots": 2}));
    let mut ask = |op: u64, attributes: Value, priority: Value, options: Value| {
        assert_eq!(wire.ask(&json!([op, 1, "app", [attributes], 1, priority, options]))[0], 1);
    };
    for _ in 0..5 {
        ask(3, json!(["user", "a"]), Value::Null, Value::Null);
    }
    ask(3, json!(["path", "/healthz"]), Value::Null, Value::Null);
    ask(3, json!(["agent", "bot"]), Value::Null, Value::Null);
    ask(3, json!(["colour", "red"]), json!("critical"), Value::Null);
    ask(3, json!(["user", "b"]), json!("get"), json!({"queued_us": 600_000}));
    // A peek is not counted.
    ask(4, json!(["user", "a"]), Value::Null, Value::Null);
    let metrics = scrape(&daemon);
    assert_eq!(metrics.sum(&["tidegate_decisions_total"]), 9.0);
    for (rule, verdict, count) in [
        ("per-user", "allow", 3.0),
        ("per-user", "limit", 2.0),
        ("bots", "deny", 1.0),
        ("web/queue_age", "shed", 1.0),
    ] {
        let (rule, verdict) = (format!("rule=\"{rule}\""), format!("verdict=\"{verdict}\""));
        assert_eq!(metrics.sum(&["tidegate_decisions_total", "\"app\"", &rule, &verdict]), count, "{rule}");
    }
    let of = |outcome: &str, rule: &str| {
        let labels = format!("domain=\"app\",rule=\"{rule}\",outcome=\"{outcome}\"");
        metrics.of(&format!("tidegate_rule_checks_total{{{labels}}}"))
    };
    // Of three that passed, the second fell below the warning threshold.
    let per_user = ["pass", "near", "over", "refuse", "would_refuse"].map(|outcome| of(outcome, "per-user"));
    assert_eq!(per_user, [2.0, 2.0, 0.0, 2.0, 0.0], "user b fitted before it was shed");
    assert_eq!([of("pass", "quiet"), of("would_refuse", "quiet")], [2.0, 4.0]);
    assert_eq!([of("pass", "probes"), of("refuse", "bots"), of("refuse", "web/queue_age")], [1.0; 3]);
    assert_eq!(metrics.sum(&["tidegate_candidate_checks_total", "per-user", "refuse"]), 4.0);
    let priority = |labels: &str| metrics.of(&format!("tidegate_priority_total{{priority={labels}}}"));
    assert_eq!(priority("\"critical\",verdict=\"allow\""), 1.0);
    assert_eq!(priority("\"get\",verdict=\"shed\""), 1.0);
    assert_eq!(metrics.of("tidegate_unmatched_total{reason=\"rule\"}"), 0.0, "the pool's rules looked at it");
    // Timing begins after 64 batches.
    assert_eq!(metrics.of("tidegate_decision_seconds_count"), 0.0);
}

#[test]
fn counts_leases_connections_and_faults() {
    let daemon = Plan::new()
        .rules("app.yaml", EVERYTHING)
        .settings("connections: {max: 3}\ndomains: {api: {uids: [4711]}}")
        .start();
    let missed =
        json!({"client": "ruby/2", "pool": "web", "slots": 4, "missed": {"timeout": 3, "breaker": 4}});
    let mut wire = greet(&daemon, &missed);
    let mut stranger = greet(
        &daemon,
        &json!({"client": "canary{}\"/1", "pool": "secret", "slots": 9, "missed": {"timeout": 5}}),
    );
    let granted = wire.ask(&json!([1, 2, "app", [["job", "export", "user", "b"]]]));
    assert!(granted[9].is_u64(), "a lease: {granted}");
    stranger.ask(&json!([1, 2, "app", [["user", "c"]]]));
    wire.ask(&json!([3, 9, "app", [["user", "c"]], 1, null, {"missed": {"callback": 6}}]));
    let forged = json!([3, 9, "app", [["user", "c"]], 1, null, {"missed": {"protocol": u64::MAX}}]);
    (0..2).for_each(|_| drop(stranger.ask(&forged)));
    wire.ask(&json!([77, 3]));
    wire.ask(&json!([3, 4, "api", [["user", "c"]]]));
    let third = daemon.greeted();
    let mut fourth = daemon.connect();
    assert!(fourth.hear().is_some(), "it is told that there are too many");
    let metrics = scrape(&daemon);
    assert_eq!(metrics.of("tidegate_connections"), 3.0);
    assert_eq!(metrics.of("tidegate_sessions"), 3.0);
    assert_eq!(metrics.of("tidegate_connections_refused_total{reason=\"max\"}"), 1.0);
    assert_eq!(metrics.of("tidegate_frames_bad_total{code=\"unknown_op\"}"), 1.0);
    assert_eq!(metrics.of("tidegate_frames_bad_total{code=\"not_allowed\"}"), 1.0);
    let missed = |client: &str, reason: &str| {
        metrics.of(&format!("tidegate_missed_total{{client=\"{client}\",reason=\"{reason}\"}}"))
    };
    assert_eq!(
        [missed("ruby", "timeout"), missed("ruby", "breaker"), missed("ruby", "callback")],
        [3.0, 4.0, 6.0]
    );
    assert_eq!(missed("other", "timeout"), 5.0);
    assert_eq!(missed("other", "protocol"), 8_589_934_592.0, "a report adds at most 2 to the 32");
    assert_eq!(metrics.sum(&["tidegate_missed_total"]), 18.0 + 8_589_934_592.0);
    assert_eq!(metrics.of("tidegate_slots{pool=\"web\"}"), 4.0);
    assert_eq!(metrics.of("tidegate_slots{pool=\"other\"}"), 9.0, "a name that clients made up is no label");
    assert_eq!(metrics.of("tidegate_slots_busy{pool=\"other\"}"), 1.0);
    assert_eq!(metrics.of("tidegate_leases"), 2.0);
    drop((wire, stranger, third));
    wait_until("all leases have ended with their sessions", || {
        let metrics = scrape(&daemon);
        let ended = metrics.of("tidegate_lease_ended_total{reason=\"session\"}");
        metrics.of("tidegate_leases") == 0.0 && ended == 2.0
    });
    assert_eq!(scrape(&daemon).of("tidegate_connections"), 0.0);
}

#[test]
fn reload_updates_metrics_and_keeps_counters() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    wire.ask(&hit(1, "u"));
    let before = scrape(&daemon);
    assert_eq!(before.of("tidegate_rules_reload_success"), 1.0);
    let sha = |metrics: &Metrics| {
        metrics.series.keys().find(|series| series.starts_with("tidegate_rules_info")).cloned().unwrap()
    };
    let file = daemon.plan.path("rules/api.yaml");
    fs::write(&file, "domain: api\nlimits: [{name: per-user").unwrap();
    assert_eq!(post(&daemon, "/reload", "").status, 409);
    let broken = scrape(&daemon);
    assert_eq!(broken.of("tidegate_rules_reload_success"), 0.0);
    assert_eq!(sha(&broken), sha(&before));
    let last = "tidegate_rules_last_reload_timestamp_seconds";
    assert!((broken.of(last) - before.of(last)).abs() < 0.5, "that of the last success");
    fs::write(
        &file,
        "domain: api\nlimits: [{name: per-user, key: [user], rate: 1/h, burst: 5, mode: shadow}]\n",
    )
    .unwrap();
    assert_eq!(post(&daemon, "/reload", "{}").status, 200);
    let repaired = scrape(&daemon);
    assert_eq!(repaired.of("tidegate_rules_reload_success"), 1.0);
    assert_ne!(sha(&repaired), sha(&before));
    let modes = ["enforce", "shadow", "disabled"].map(|mode| {
        repaired.of(&format!("tidegate_mode{{domain=\"api\",rule=\"per-user\",mode=\"{mode}\"}}"))
    });
    assert_eq!(modes, [0.0, 1.0, 0.0]);
    let allowed = "tidegate_decisions_total{domain=\"api\",rule=\"per-user\",verdict=\"allow\"}";
    assert_eq!([before.of(allowed), repaired.of(allowed)], [1.0, 1.0]);
    // In shadow mode an answer names no rule.
    wire.ask(&hit(2, "u"));
    let unnamed = "tidegate_decisions_total{domain=\"api\",rule=\"\",verdict=\"allow\"}";
    let metrics = scrape(&daemon);
    assert_eq!([metrics.of(allowed), metrics.of(unnamed)], [1.0, 1.0]);
    // A removed rule keeps its counts; one that never counted leaves no series.
    fs::write(&file, "domain: api\nlimits: [{name: never, key: [user], rate: 1/h}]\n").unwrap();
    assert_eq!(post(&daemon, "/reload", "").status, 200);
    fs::write(&file, "domain: api\nlimits: [{name: new, key: [user], rate: 1/h}]\n").unwrap();
    assert_eq!(post(&daemon, "/reload", "").status, 200);
    let last = scrape(&daemon);
    assert_eq!(last.of(allowed), 1.0);
    assert!(!last.series.keys().any(|series| series.contains("never")));
}

#[test]
fn escapes_rule_names_in_metrics() {
    let rules = "domain: tree\ndescriptors: [{key: k, value: \"a\\\"b\\\\c\\nd{}=,\", rate_limit: {unit: day, requests_per_unit: 5}}]\n";
    let daemon = Plan::new().rules("tree.yaml", rules).start();
    let metrics = scrape(&daemon);
    let escaped = "rule=\"k_a\\\"b\\\\c_d{}=,\",mode=\"enforce\"";
    assert_eq!(metrics.sum(&[escaped]), 1.0, "{:?}", metrics.series.keys());
}

#[test]
fn bounds_series_by_rule_count() {
    let rule = |number: usize| {
        let candidate = if number < 64 { ", candidate: {rate: 1/s}" } else { "" };
        format!("  - {{name: rule-{number}, key: [user], rate: 5/s{candidate}}}\n")
    };
    let shed = "shed:\n  - {pool: web, slots: 8, queue_age: {}, workers: {}, brake: {bands: [70%, 80%, 90%]}, fleet: {reserve: 20%, for: critical}}\n";
    let rules = |many: usize| {
        let limits: String = (0..many).map(rule).collect();
        format!("domain: app\npriorities: [critical, post, get, test]\nlimits:\n{limits}{shed}")
    };
    let daemon = Plan::new().rules("app.yaml", &rules(64)).start();
    let metrics = scrape(&daemon);
    assert!(metrics.series.len() <= 5_000, "{} series", metrics.series.len());
    assert!(metrics.series.len() > 64 * 10);
    fs::write(daemon.plan.path("rules/app.yaml"), rules(600)).unwrap();
    assert_eq!(post(&daemon, "/reload", "").status, 200);
    let mut wire = daemon.greeted();
    wire.ask(&json!([3, 1, "app", [["user", "u"]]]));
    let metrics = scrape(&daemon);
    let other = metrics.of("tidegate_rule_checks_total{domain=\"\",rule=\"other\",outcome=\"pass\"}");
    // All rules checked the request, and none counts twice.
    assert!(other > 0.0);
    assert_eq!(metrics.sum(&["tidegate_rule_checks_total", "outcome=\"pass\""]), 600.0);
    assert!(metrics.series.len() <= 512 * 17, "{} series", metrics.series.len());
}
