//! Replies of a full pool over the socket: shed, with a retry-after and without a limit.

use serde_json::{Value, json};

use super::daemon::Plan;
use super::wire::{Wire, verdict_of};
use super::work::lease_of;

const RULES: &str = "\
domain: app
priorities: [critical, get]
limits: [{name: per-user, key: [user], rate: 1/h, burst: 3}]
shed:
  - pool: web
    queue_age: {others: 500ms, critical: 2500ms}
    fleet: {reserve: 50%, for: critical}
    callers: {by: [user], rotate: 10min}
";

fn ask(wire: &mut Wire, op: u64, user: &str, priority: &str, queued_us: u64) -> Value {
    wire.ask(&json!([op, 5, "app", [["user", user]], 1, priority, {"queued_us": queued_us}]))
}

#[test]
fn sheds_aged_requests_with_own_retry_after() {
    let daemon = Plan::new().rules("app.yaml", RULES).start();
    let mut wire = daemon.session(1, json!({"pool": "web", "slots": 4}));
    for op in [1, 3, 4] {
        let shed = ask(&mut wire, op, "a", "get", 500_001);
        let nil = json!(null);
        assert_eq!((verdict_of(&shed), &shed[3]), (2, &json!("web/queue_age")), "{op}: {shed}");
        assert_eq!([&shed[4], &shed[5], &shed[6], &shed[7], &shed[9]], [&nil; 5], "{shed}");
        assert!(shed[8].as_u64().unwrap() > 0, "{shed}");
        assert_eq!(shed[8], ask(&mut wire, op, "a", "get", 600_000)[8], "the same for the same caller");
    }
    let hints: Vec<Value> =
        (0..5).map(|user| ask(&mut wire, 4, &user.to_string(), "get", 600_000)[8].clone()).collect();
    assert!(hints.iter().any(|hint| *hint != hints[0]), "not the same for all: {hints:?}");
    lease_of(&ask(&mut wire, 1, "a", "critical", 2_500_000));
    lease_of(&ask(&mut wire, 1, "a", "get", 500_000));
    // Shed requests charge nothing, and a request over its own limit is limited instead.
    lease_of(&ask(&mut wire, 1, "a", "critical", 0));
    let limited = ask(&mut wire, 1, "a", "get", 600_000);
    assert_eq!((verdict_of(&limited), &limited[3]), (1, &json!("per-user")), "{limited}");
}
