//! Log entries caused by traffic: a few lines per place in the source, then a count.

use serde_json::Value;

use super::daemon::{Daemon, Plan, eventually};
use super::faults::panicking;

/// Two places in the source: the panic, and the end of its connection.
const SAID: [&str; 2] = ["panicked: (its message", "a request panicked"];

/// Lines of one place in 10 s, as in docs/operate.md.
const LINES_MAX: usize = 8;

/// More than are logged at once, from both places.
const PROVOKED: usize = 20;

fn provoke(daemon: &Daemon) {
    let mut wire = daemon.greeted();
    wire.send(&panicking(1));
    assert_eq!(wire.hear_all().len(), 1, "it is answered, and its connection ends");
}

fn lines<'l>(log: &'l str, said: &str) -> Vec<&'l str> {
    log.lines().filter(|line| line.contains(said)).collect()
}

/// Provokes more lines than are logged, then more until the suppressed are counted; returns the number.
fn provoke_until_told(daemon: &Daemon) -> usize {
    (0..PROVOKED).for_each(|_| provoke(daemon));
    // A separate thread writes the log.
    for said in SAID {
        eventually("the first lines are written", || {
            (lines(&daemon.log(), said).len() >= LINES_MAX).then_some(())
        });
    }
    let log = daemon.log();
    for said in SAID {
        // On a busy machine this may have taken more than 10 s.
        if !log.contains("suppressed") {
            assert_eq!(lines(&log, said).len(), LINES_MAX, "{log}");
        }
    }
    let mut provoked = PROVOKED;
    eventually("it is said how many lines were left out", || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        provoke(daemon);
        provoked += 1;
        let log = daemon.log();
        SAID.iter().all(|said| lines(&log, said).iter().any(|line| line.contains("suppressed"))).then_some(())
    });
    provoked
}

/// Only a debug build can be made to panic by requests.
fn is_skipped() -> bool {
    if !cfg!(debug_assertions) {
        eprintln!("skipped: only a debug build can be made to panic");
    }
    !cfg!(debug_assertions)
}

#[test]
fn throttles_log_lines_caused_by_traffic() {
    if is_skipped() {
        return;
    }
    let daemon = Plan::new().start();
    let provoked = provoke_until_told(&daemon);
    let log = daemon.log();
    for said in SAID {
        let lines = lines(&log, said);
        let left_out = |line: &&str| -> Option<usize> {
            // At the end of the line, after the message.
            line.split_once(" suppressed=")?.1.parse().ok()
        };
        let suppressed: usize = lines.iter().filter_map(left_out).sum();
        assert!(suppressed >= PROVOKED - LINES_MAX, "{log}");
        // Logged and suppressed lines add up, except those after the last logged line.
        assert!(lines.len() + suppressed <= provoked, "{provoked}: {log}");
        assert!(lines.len() + suppressed > PROVOKED, "{provoked}: {log}");
    }
    // Lines caused by operators are never suppressed.
    for _ in 0..2 * LINES_MAX {
        let reloads = |daemon: &Daemon| lines(&daemon.log(), "the rules were read again").len();
        let before = reloads(&daemon);
        daemon.process.signal(libc::SIGHUP);
        eventually("a reload is told", || (reloads(&daemon) > before).then_some(()));
    }
    daemon.greeted().assert_served();
}

#[test]
fn throttled_json_lines_stay_valid() {
    if is_skipped() {
        return;
    }
    let daemon = Plan::new().settings("log: {format: json}").start_when("\"serving\"");
    provoke_until_told(&daemon);
    let log = daemon.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for said in SAID {
        let of = |line: &&Value| line["message"].as_str().is_some_and(|message| message.starts_with(said));
        let told = lines.iter().filter(of).find(|line| !line["suppressed"].is_null()).unwrap();
        assert!(told["suppressed"].as_u64().unwrap() >= (PROVOKED - LINES_MAX) as u64, "{told}");
    }
}
