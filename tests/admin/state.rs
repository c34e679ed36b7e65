//! What metrics say of the tables that are kept over a restart.

use std::fs;
use std::time::UNIX_EPOCH;

use super::daemon::{Plan, eventually};
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
    fs::rename(daemon.plan.path("kept"), daemon.plan.path("gone")).unwrap();
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
fn a_daemon_that_goes_on_with_anothers_tables_is_as_old_as_itself() {
    let mut first = plan().start();
    let enough =
        |daemon| Some(scrape(daemon).of("tidegate_state_writes_total")).filter(|count| *count >= 10.0);
    eventually("it has lived for 200 ms", || enough(&first));
    first.process.signal(libc::SIGTERM);
    assert_eq!(first.process.exit_code(), Some(0));
    let written = fs::metadata(first.plan.path("kept/tables")).unwrap().modified().unwrap();
    let second = first.plan.start();
    second.await_log(&["taken up where the last daemon ended"]);
    // The wall clock is sampled, so that it may seem to be a little earlier.
    let ended = written.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(scrape(&second).of("tidegate_start_time_seconds") > ended - 0.05);
}
