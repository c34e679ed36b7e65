//! What metrics say of the tables that are kept over a restart.

use std::fs;

use tidegate::clock::unix_nanos;

use super::daemon::{Plan, eventually};
use super::http::get;
use super::scrape::{EVERYTHING, scrape};

fn plan() -> Plan {
    let mut plan = Plan::new().rules("app.yaml", EVERYTHING).settings("state: kept");
    fs::create_dir(plan.path("kept")).unwrap();
    plan.arguments.extend(["--write-state-every".into(), "20".into()]);
    plan
}

#[test]
fn what_is_written_is_counted() {
    let daemon = plan().start();
    let written =
        |daemon| Some(scrape(daemon).of("tidegate_state_writes_total")).filter(|count| *count >= 2.0);
    eventually("the tables are written", || written(&daemon));
    let metrics = scrape(&daemon);
    assert!(metrics.of("tidegate_state_last_write_timestamp_seconds") > 1e9);
    assert!(metrics.of("tidegate_state_bytes") > 0.0);
    assert_eq!(metrics.of("tidegate_state_write_failures_total"), 0.0);
    assert_eq!(metrics.of("tidegate_state_bad_total"), 0.0);
    // The directory goes from under it: nothing else happens than that somebody is told.
    fs::rename(daemon.plan.path("kept"), daemon.plan.path("elsewhere")).unwrap();
    eventually("a failure is counted", || {
        Some(scrape(&daemon).of("tidegate_state_write_failures_total")).filter(|count| *count > 0.0)
    });
    daemon.greeted().assert_served();
}

#[test]
fn tables_of_no_use_are_counted() {
    let plan = plan();
    fs::write(plan.path("kept/tables"), "no tables").unwrap();
    let daemon = plan.start();
    assert_eq!(scrape(&daemon).of("tidegate_state_bad_total"), 1.0);
    assert!(daemon.plan.path("kept/tables.bad").exists());
}

#[test]
fn a_daemon_that_goes_on_with_tables_is_up_since_its_own_start() {
    let mut plan = plan();
    let mut last = 0.0;
    for _ in 0..2 {
        let before = unix_nanos() as f64 / 1e9;
        let mut daemon = plan.start();
        let started = || scrape(&daemon).of("tidegate_start_time_seconds");
        let first = started();
        // Read at two moments, of which the first is not exactly the daemon's.
        assert!(first > before - 0.1 && first > last, "{first} {before} {last}");
        // Long enough that what the one before was up would show in whole seconds, and the wall clock is looked at again.
        let status = eventually("it is up for two seconds", || {
            Some(get(&daemon, "/status").json()).filter(|status| status["uptime_s"].as_u64() >= Some(2))
        });
        let up = status["uptime_s"].as_f64().unwrap();
        assert!(up <= unix_nanos() as f64 / 1e9 - before, "{up}");
        assert!((status["started"].as_f64().unwrap() - first).abs() < 1e-3);
        // Whoever counts how often it changes is to count starts.
        assert_eq!(started(), first);
        last = first;
        daemon.process.signal(libc::SIGTERM);
        assert_eq!(daemon.process.exit_code(), Some(0));
        plan = daemon.plan;
    }
}
