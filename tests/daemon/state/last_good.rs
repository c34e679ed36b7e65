//! A start with errors in a domain's files uses the domain's last good rules.

use super::restarts::{RULES, plan, state};
use super::strace::{Fault, calls, may_trace};
use crate::prelude::*;

const TABLED: &str = "\
domain: tabled
limits:
  - {name: by-file, key: [user], rate: 1/h, burst: 1, overrides_file: few.csv}
";

fn kept(plan: &Plan) -> String {
    fs::read_to_string(state(plan).join("rules")).unwrap_or_default()
}

/// With a second domain, whose rules name a table; waits until its rules are stored.
fn two_domains() -> Daemon {
    let plan = plan().rules("few.csv", "user,rate,burst\nspecial,1/h,3\n").rules("tabled.yaml", TABLED);
    let daemon = plan.start();
    wait_until("the rules are kept", || kept(&daemon.plan).contains("special"));
    daemon
}

fn of_tabled(daemon: &Daemon, user: &str) -> u64 {
    let mut wire = daemon.greeted();
    let ask = |id| json!([3, id, "tabled", [["user", user]]]);
    (0..5).filter(|id| wire.ask(&ask(*id))[2] == 0).count() as u64
}

#[test]
fn uses_last_good_rules_when_files_broken_at_start() {
    for broken in ["domain: tabled\nlimits:\n  - {name: by-file, rat: 1/h}\n", "nothing: {of, the kind\n"] {
        let plan = two_domains().killed().rules("tabled.yaml", broken);
        let daemon = plan.start();
        daemon.await_log(&["ERROR", "tabled", "YESTERDAY'S"]);
        assert_eq!((of_tabled(&daemon, "special"), of_tabled(&daemon, "other")), (3, 1));
        assert_eq!(daemon.greeted().allowed("u", 6), 5, "the other domain is as its files stand");
        // A second start keeps the rules.
        let daemon = daemon.stopped().start();
        daemon.await_log(&["ERROR", "tabled", "YESTERDAY'S"]);
        assert_eq!(of_tabled(&daemon, "third"), 1);
        fs::write(daemon.plan.path("rules/tabled.yaml"), TABLED.replace("burst: 1", "burst: 2")).unwrap();
        daemon.await_log(&["are in force"]);
        assert_eq!(of_tabled(&daemon, "fourth"), 2);
    }
}

#[test]
fn uses_last_good_rules_when_table_or_directory_missing() {
    for (missing, domain) in [("rules/few.csv", "tabled"), ("rules", "api")] {
        let plan = two_domains().killed();
        fs::rename(plan.path(missing), plan.path("away")).unwrap();
        let daemon = plan.start();
        daemon.await_log(&["ERROR", domain, "YESTERDAY'S"]);
        assert_eq!((of_tabled(&daemon, "special"), daemon.greeted().allowed("u", 6)), (3, 5));
    }
}

#[test]
fn logs_changes_of_rules_since_the_last_run() {
    const CHANGED: &str = "since the last run the rules changed";
    let daemon = two_domains().stopped().start();
    // Its thread compares before it reloads.
    daemon.run("reload");
    assert!(!daemon.log().contains(CHANGED), "{}", daemon.log());
    let plan = daemon.stopped().rules("api.yaml", &RULES.replace("key: [user], rate", "key: [org], rate"));
    let plan = plan.rules("few.csv", "user,rate,burst\nspecial,1/h,4\n");
    let plan = plan.rules("web.yaml", &TABLED.replace("domain: tabled", "domain: web"));
    let daemon = plan.start();
    daemon.await_log(&[
        "INFO",
        CHANGED,
        "changes=3",
        "api/per-user: key [user] → [org]; its counts are dropped",
    ]);
    daemon.await_log(&[CHANGED, "; tabled/by-file: overrides", "; web: new, 1 rule"]);
    // They are stored after the line; until then the next start would compare with the run before.
    wait_until("the new rules are kept", || kept(&daemon.plan).contains("domain: web"));
    let plan = daemon.stopped();
    fs::remove_file(plan.path("rules/web.yaml")).unwrap();
    let daemon = plan.start();
    daemon.await_log(&[CHANGED, "changes=1", "web: removed with its 1 rule: it has NO LIMITS now"]);
    wait_until("it is not kept any more", || !kept(&daemon.plan).contains("domain: web"));
    // A domain that keeps its last good rules for errors is not changed.
    let plan = daemon.stopped().rules("tabled.yaml", "domain: tabled\nlimits: 5\n");
    let daemon = plan.start();
    daemon.run("hit api user=u");
    let (_, _, log) = daemon.outcome("reload");
    assert!(!daemon.log().contains(CHANGED), "{log}");
}

#[test]
fn replaces_damaged_last_good_rules_and_those_of_another_version() {
    for (written, changed) in [("burst: 1,", "burst: 9,"), ("tidegate rules 1 ", "tidegate rules 2 ")] {
        let plan = two_domains().killed().rules("tabled.yaml", "domain: tabled\nlimits: 5\n");
        fs::write(state(&plan).join("rules"), kept(&plan).replace(written, changed)).unwrap();
        let daemon = plan.start();
        daemon.await_log(&["WARN", "damaged or another version's: not used"]);
        daemon.await_log(&["ERROR", "tabled", "NO LIMITS"]);
        assert_eq!((of_tabled(&daemon, "special"), daemon.greeted().allowed("u", 6)), (5, 5));
        fs::write(daemon.plan.path("rules/tabled.yaml"), TABLED).unwrap();
        wait_until("they are kept again", || kept(&daemon.plan).contains(written));
    }
}

#[test]
fn keeps_last_good_rules_when_read_fails() {
    needs!(may_trace());
    // The thread that stores the rules reads them when it starts and when they change.
    let fault = Fault { file: "rules", calls: "/^open", what: "error=EIO:when=2" };
    let daemon = two_domains().stopped().with(fault).start();
    let opened = || calls(&daemon.plan.path("trace")).iter().filter(|call| call.starts_with("open")).count();
    wait_until("they were read at the start and by that thread", || opened() >= 2);
    fs::write(daemon.plan.path("rules/tabled.yaml"), "domain: tabled\nlimits: 5\n").unwrap();
    fs::write(daemon.plan.path("rules/api.yaml"), RULES.replace("burst: 5", "burst: 7")).unwrap();
    daemon.await_log(&["WARN", "the rules cannot be kept", "Input/output error"]);
    daemon.await_log(&["INFO", "the rules can be kept again"]);
    assert!(kept(&daemon.plan).contains("burst: 7"));
    let daemon = daemon.stopped().without_fault().start();
    daemon.await_log(&["ERROR", "tabled", "YESTERDAY'S"]);
    assert_eq!((of_tabled(&daemon, "special"), daemon.greeted().allowed("u", 8)), (3, 7));
}
