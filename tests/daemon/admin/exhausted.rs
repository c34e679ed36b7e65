//! A daemon without free descriptors: existing connections are served, operations that need one fail, are
//! reported and retried, and all recovers with free descriptors.

use super::scrape::scrape;
use crate::prelude::*;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Another burst than that of [`RULES`].
const OTHER_RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 7}
";

/// Sets the descriptor limit of the daemon; returns the previous one.
fn limit_descriptors(daemon: &Daemon, current: Option<u64>) -> Option<u64> {
    let pid = Pid::from_raw(daemon.process.id().cast_signed());
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap().current
}

/// The daemon's largest descriptor plus one.
fn descriptors_end(daemon: &Daemon) -> u64 {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.process.id())).unwrap();
    let numbers =
        descriptors.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap());
    numbers.max().unwrap() + 1
}

/// Uses all descriptors of the daemon.
fn exhaust(daemon: &Daemon) -> (Vec<Wire>, Option<u64>) {
    let before = limit_descriptors(daemon, Some(descriptors_end(daemon)));
    let mut waiting = Vec::new();
    wait_until("connections take the last descriptors", || {
        let mut wire = daemon.connect();
        wire.send(&hello());
        waiting.push(wire);
        let log = daemon.log();
        log.contains("no connection can be let in") && log.contains("cannot be written")
    });
    (waiting, before)
}

#[test]
fn logs_missing_descriptors_and_recovers() {
    let daemon = Plan::new().with_state().writes_state_every(100).start();
    let mut here = daemon.greeted();
    let (mut waiting, before) = exhaust(&daemon);
    daemon.await_log(&["WARN", "tables cannot be written", "Too many open files"]);
    fs::write(daemon.plan.path("rules/api.yaml"), OTHER_RULES).unwrap();
    daemon.process.signal(libc::SIGHUP);
    daemon.await_log(&["Too many open files", "rules", "LimitNOFILE"]);
    let socket = admin_socket(&daemon);
    let operator = thread::spawn(move || get_at(&socket, "/healthz"));
    // No busy loop: an immediate retry uses 100 ticks per second. A few are needed for ten writes per second.
    let ticks = daemon.process.cpu_ticks();
    for id in 0..15 {
        sleep(Duration::from_millis(100));
        let reply = here.ask(&hit(id, "u"));
        assert_eq!((&reply[0], &reply[4]), (&json!(1), &json!(5)), "by the rules that were good: {reply}");
    }
    let used = daemon.process.cpu_ticks() - ticks;
    eprintln!("{used} hundredths of a second in one and a half");
    assert!(used < 30, "{used} hundredths of a second in one and a half");
    limit_descriptors(&daemon, before);
    for wire in &mut waiting {
        let reply = wire.hear().expect("a place within some seconds");
        assert_eq!(reply[0], 0, "{reply}");
    }
    assert_eq!(operator.join().unwrap().expect("an answer").status, 200);
    daemon.await_log(&["INFO", "the tables can be written again"]);
    // A failed read is retried without another change or signal.
    wait_until("the new rules are in force", || here.ask(&hit(20, "other"))[4] == 7);
    // The watch on changes works as before.
    fs::write(daemon.plan.path("rules/api.yaml"), OTHER_RULES.replace('7', "9")).unwrap();
    wait_until("the next rules are in force", || here.ask(&hit(21, "third"))[4] == 9);
    let metrics = scrape(&daemon);
    assert!(metrics.of("tidegate_state_write_failures_total") > 0.0);
    assert_eq!(metrics.of("tidegate_rules_reload_success"), 1.0);
    assert_eq!(get(&daemon, "/readyz").status, 200);
    let log = daemon.log();
    assert_eq!(log.matches("tables cannot be written").count(), 1, "{log}");
    assert!(!log.contains("panicked"), "{log}");
}
