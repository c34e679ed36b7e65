//! The exact state that survives a restart of the daemon.

use crate::prelude::*;
use std::os::unix::fs::PermissionsExt;

pub(crate) const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5}
concurrency:
  - {name: at-once, match: {job: export}, key: [org], max: 2, expires: 2h}
";

pub(crate) fn plan() -> Plan {
    Plan::new().with_state().rules("api.yaml", RULES)
}

pub(crate) fn state(plan: &Plan) -> PathBuf {
    plan.path("state")
}

/// Stops the daemon; returns its plan and log.
pub(crate) fn end(mut daemon: Daemon) -> (Plan, String) {
    daemon.stop();
    let log = daemon.log();
    (daemon.plan, log)
}

pub(crate) fn of_session(daemon: &Daemon, number: u8) -> Wire {
    daemon.session(number, json!({"pool": "jobs", "slots": 4}))
}

fn export(id: u64, org: &str) -> Value {
    json!([1, id, "api", [["job", "export", "org", org]]])
}

#[test]
fn keeps_bucket_levels_across_restart() {
    let daemon = plan().start();
    assert_eq!(daemon.greeted().allowed("u", 3), 3);
    let (plan, log) = end(daemon);
    assert!(log.contains("every caller starts fresh"), "{log}");
    let mode = |name: &str| fs::metadata(state(&plan).join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("tables"), mode("hash-key")), (0o600, 0o600));
    let daemon = plan.start();
    assert_eq!(daemon.greeted().allowed("u", 5), 2);
    daemon.await_log(&["restored the state", "entries="]);
    let daemon = daemon.stopped().start();
    assert_eq!(daemon.greeted().allowed("u", 5), 0);
    assert_eq!(daemon.greeted().allowed("another", 6), 5);
}

#[test]
fn restored_sessions_keep_leases_if_they_reconnect() {
    let daemon = plan().start();
    let (mut one, mut other) = (of_session(&daemon, 1), of_session(&daemon, 2));
    let lease = |reply: &Value| reply[9].as_u64().expect("a lease");
    let kept = lease(&one.ask(&export(1, "a")));
    let abandoned = lease(&other.ask(&export(1, "a")));
    assert_eq!(verdict_of(&one.ask(&export(2, "a"))), 1, "two at once");
    let daemon = daemon.stopped().start();
    let begun = read_boot_nanos();
    let mut one = of_session(&daemon, 1);
    assert_eq!(verdict_of(&one.ask(&export(3, "a"))), 1, "both places are still held");
    assert_eq!(one.ask(&json!([6, 4, kept])), json!([2, 4, true]), "it can be renewed");
    assert_eq!(one.ask(&json!([2, 5, abandoned, 0])), json!([2, 5, false]), "another's");
    // The other session's process has exited: it ends after the usual time.
    wait_until("the other's place is free", || verdict_of(&one.ask(&export(6, "a"))) == 0);
    assert!(read_boot_nanos() - begun > 4_000_000_000, "before its time");
    assert_eq!(one.ask(&json!([2, 7, kept, 0])), json!([2, 7, true]));
    assert_eq!(one.ask(&json!([2, 8, kept, 0])), json!([2, 8, false]), "once");
    assert!(!daemon.log().contains("differ"), "{}", daemon.log());
}
