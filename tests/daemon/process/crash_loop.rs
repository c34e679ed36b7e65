//! A daemon that repeatedly ends by its own panic or abort starts without the possible cause.

use crate::prelude::*;

/// With a state directory, and a short time until rules are proven.
fn plan() -> Plan {
    Plan::new().with_state().writes_state_every(1_000)
}

fn state(plan: &Plan, file: &str) -> PathBuf {
    plan.path("state").join(file)
}

fn burst(daemon: &Daemon, user: &str) -> u64 {
    daemon.greeted().allowed(user, 9)
}

/// Crashes the daemon `times` times.
fn crash(plan: &Plan, how: &str, times: usize) {
    for _ in 0..times {
        let mut process = Process::start(plan.command("crashed").env("TIDEGATE_DEBUG_PANIC", how));
        let code = process.exit_code();
        let log = fs::read_to_string(plan.path("crashed")).unwrap();
        assert_eq!(code, (how == "main").then_some(101), "{log}");
        assert!(!log.contains("CRASH LOOP"), "{log}");
    }
}

fn ended(mut daemon: Daemon, signal: i32) -> Plan {
    daemon.process.signal(signal);
    daemon.process.exit_code();
    daemon.plan
}

/// A plan with proven rules, which are then replaced.
fn proven_and_changed() -> Plan {
    let daemon = plan().start();
    wait_until("the rules are proven", || state(&daemon.plan, "rules-proven").exists());
    assert_eq!(burst(&daemon, "u1"), 5);
    let plan = ended(daemon, libc::SIGTERM);
    plan.rules("api.yaml", &RULES.replace("burst: 5", "burst: 2"))
}

#[test]
#[cfg(debug_assertions)]
fn goes_back_to_proven_rules_and_keeps_the_evidence() {
    for how in ["main", "abort"] {
        let plan = proven_and_changed();
        crash(&plan, how, 5);
        let tables = fs::read(state(&plan, "tables")).unwrap();
        let daemon = plan.start();
        daemon.await_log(&["ERROR", "CRASH LOOP", "ended 5 times within 60 s"]);
        daemon.await_log(&["ERROR", "LAST RULES UNDER WHICH THIS DAEMON RAN FOR A MINUTE"]);
        assert_eq!(burst(&daemon, "u1"), 5, "by the rules of before, and u1 begins afresh");
        assert_eq!(fs::read(state(&daemon.plan, "tables.crash-loop")).unwrap(), tables);
        assert!(state(&daemon.plan, "rules.crash-loop").exists());
        assert_eq!(metric(&daemon, "tidegate_crash_loop"), Some(1.0));
        let ready = get(&daemon, "/readyz");
        assert!(ready.status == 503 && ready.body.contains("crash loop"), "{ready:?}");
        assert!(get(&daemon, "/status").body.contains("crash loop"));
        // Repaired rules are read as usual.
        fs::write(daemon.plan.path("rules/api.yaml"), RULES.replace("burst: 5", "burst: 3")).unwrap();
        wait_until("the files are read again", || metric(&daemon, "tidegate_crash_loop") == Some(0.0));
        assert_eq!(burst(&daemon, "u2"), 3);
        assert_eq!(get(&daemon, "/readyz").status, 200);
        // Without further crashes the next start is normal.
        let daemon = ended(daemon, libc::SIGTERM).start();
        assert!(!daemon.log().contains("CRASH LOOP"), "{}", daemon.log());
    }
}

#[test]
fn kills_and_orderly_ends_are_no_crashes() {
    let mut plan = proven_and_changed();
    // Enough aborts for a loop, but sent by another process.
    for signal in [libc::SIGKILL, libc::SIGQUIT, libc::SIGTERM].into_iter().chain([libc::SIGABRT; 5]) {
        plan = ended(plan.start(), signal);
    }
    let daemon = plan.start();
    assert!(!daemon.log().contains("CRASH LOOP"), "{}", daemon.log());
    assert_eq!(metric(&daemon, "tidegate_crash_loop"), Some(0.0));
    assert_eq!(burst(&daemon, "u2"), 2);
}

#[test]
#[cfg(debug_assertions)]
fn four_crashes_are_no_loop_and_a_loop_without_proven_rules_reads_the_files() {
    let plan = plan();
    crash(&plan, "main", 4);
    let daemon = plan.start();
    assert!(!daemon.log().contains("CRASH LOOP"), "{}", daemon.log());
    // The run is too short for a proof.
    let plan = ended(daemon, libc::SIGKILL);
    let _ = fs::remove_file(state(&plan, "rules-proven"));
    crash(&plan, "abort", 1);
    let daemon = plan.start();
    daemon.await_log(&["ERROR", "CRASH LOOP"]);
    daemon.await_log(&["ERROR", "no rules under which this daemon ran for a minute"]);
    assert_eq!(burst(&daemon, "u1"), 5);
    wait_until("it is ready", || get(&daemon, "/readyz").status == 200);
}

#[test]
#[cfg(debug_assertions)]
fn reads_the_files_where_proven_rules_are_damaged() {
    for is_pipe in [false, true] {
        let plan = proven_and_changed();
        let proven = state(&plan, "rules-proven");
        fs::remove_file(&proven).unwrap();
        if is_pipe {
            make_pipe(&proven);
        } else {
            fs::write(&proven, "no rules").unwrap();
        }
        crash(&plan, "main", 5);
        let daemon = plan.start();
        daemon.await_log(&["ERROR", "CRASH LOOP"]);
        daemon.await_log(&["rules-proven"]);
        assert_eq!(burst(&daemon, "u1"), 2, "by the files as they are");
        assert!(is_pipe || fs::read(state(&daemon.plan, "rules-proven.bad")).unwrap() == b"no rules");
    }
}
