//! Daemons of different state versions, one after the other.

use std::fs;

use super::daemon::{Plan, eventually};
use super::restarts::{allowed, end, plan, state};

/// Starts as a daemon of a later state version.
fn newer(mut plan: Plan, by: u8) -> Plan {
    plan.arguments = vec!["--threads".into(), "1".into(), "--versions-ahead".into(), by.to_string()];
    plan
}

#[test]
fn restores_tables_of_same_version_only() {
    let mut plan = plan();
    for (round, (version, left)) in
        [(0, 5), (0, 2), (1, 5), (1, 2), (1, 0), (0, 5), (0, 2)].into_iter().enumerate()
    {
        let daemon = newer(plan, version).start();
        assert_eq!(allowed(&mut daemon.greeted(), "u", 3), left.min(3), "round {round}");
        let log;
        (plan, log) = end(daemon);
        let (is_first, is_other) = (round == 0, left == 5 && round > 0);
        assert_eq!(log.contains("of no use: it is of version"), is_other, "round {round}: {log}");
        assert_eq!(log.contains("taken up"), !is_first && !is_other, "round {round}: {log}");
    }
    let version_of = |name: &str| fs::read(state(&plan).join(name)).unwrap()[8];
    assert_eq!((version_of("tables"), version_of("tables.bad")), (1, 2));
}

#[test]
fn rewrites_rules_of_another_version() {
    let daemon = plan().start();
    let kept = |plan: &Plan| fs::read_to_string(state(plan).join("rules")).unwrap_or_default();
    eventually("they are kept", || kept(&daemon.plan).starts_with("tidegate rules 1 ").then_some(()));
    let good = fs::read_to_string(daemon.plan.path("rules/api.yaml")).unwrap();
    let daemon = newer(end(daemon).0.rules("api.yaml", "domain: api\nlimits: 5\n"), 1).start();
    daemon.await_log(&["WARN", "another version's: not used"]);
    daemon.await_log(&["ERROR", "api", "NO LIMITS"]);
    fs::write(daemon.plan.path("rules/api.yaml"), good).unwrap();
    eventually("they are kept", || kept(&daemon.plan).starts_with("tidegate rules 2 ").then_some(()));
    end(daemon);
}
