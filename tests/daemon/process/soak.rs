//! Hours of work with clients that crash and abandon requests: no leases left, constant memory.

use crate::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const RULES: &str = "\
domain: api
priorities: [high, low]
limits:
  - {name: per-user, key: [user], rate: 100/s}
concurrency:
  - {name: at-once, key: [user], max: 3, expires: 2s}
shed:
  - {pool: web, slots: 8, queue_age: {}}
";

const USERS: u64 = 50;

/// Acquires, releases, forgets, abandons and disconnects until `is_over`.
fn client(daemon: &Daemon, number: u8, is_over: &AtomicBool, requests: &AtomicU64) {
    for connection in 1.. {
        let mut wire = daemon.session(number, json!({"pool": "web", "connection": connection}));
        for id in 1..40_u64 {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            one(&mut wire, connection, id);
            requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One request; its end depends on its number.
fn one(wire: &mut Wire, connection: u64, id: u64) {
    let user = format!("u{}", (connection * 7 + id) % USERS);
    let options = match id % 5 {
        0 => json!({"idem": format!("{connection}-{id}")}),
        1 => json!({"abandoned": [[connection, id - 1]]}),
        _ => json!({}),
    };
    let reply = wire.ask(&json!([1, id, "api", [["user", user]], 1, null, options]));
    assert_eq!(reply[0], 1, "{reply}");
    match (id % 4, reply[9].as_u64()) {
        // Left to expire, or to the end of the connection.
        (0, _) | (_, None) => {}
        (outcome, Some(lease)) => wire.send(&json!([2, null, lease, outcome - 1])),
    }
}

fn leases(daemon: &Daemon) -> Value {
    get(daemon, "/status").json()["leases"]["held"].clone()
}

/// Runs the load; returns ten samples of the daemon's memory in KiB.
fn soak(seconds: u64) -> Vec<u64> {
    let daemon = Plan::new().with_state().rules("api.yaml", RULES).start();
    let (is_over, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut resident = Vec::new();
    thread::scope(|threads| {
        for number in 1..5 {
            let (daemon, is_over, requests) = (&daemon, &is_over, &requests);
            threads.spawn(move || client(daemon, number, is_over, requests));
        }
        let (begin, span) = (read_boot_nanos(), seconds * 1_000_000_000);
        for tenth in 1..=10 {
            while read_boot_nanos() - begin < span * tenth / 10 {
                sleep(Duration::from_millis(50));
            }
            resident.push(daemon.process.resident_kib());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    eprintln!("{} requests in {seconds} s, resident KiB: {resident:?}", requests.load(Ordering::Relaxed));
    // Each lease has ended by a release, a report, its expiry or the end of its session.
    wait_until("no lease is left", || leases(&daemon) == json!(0));
    // No permit is in use.
    let mut wire = daemon.greeted();
    for user in 0..USERS {
        let reply = wire.ask(&json!([4, 1, "api", [["user", format!("u{user}")]], 1, null, {"all": true}]));
        let limits = reply[11].as_array().unwrap();
        let permits = limits.iter().find(|limit| limit[0] == "at-once").unwrap();
        assert_eq!(permits[3], json!(3), "u{user}: {reply}");
    }
    let log = daemon.log();
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    let status = get(&daemon, "/status").json();
    assert_eq!(status["panics"], json!(0), "{status}");
    resident
}

#[test]
fn leaves_no_lease_after_seconds_of_work() {
    soak(2);
}

#[test]
#[ignore = "an hour, or `SOAK_MINUTES`"]
fn neither_drifts_nor_grows_in_an_hour() {
    let minutes: u64 = std::env::var("SOAK_MINUTES").map_or(60, |minutes| minutes.parse().unwrap());
    let resident = soak(minutes * 60);
    // The first tenth warms up; after it, 1 MiB in ten minutes would be a leak.
    let grown = resident[9].saturating_sub(resident[1]);
    assert!(grown <= 512 + minutes * 80, "{grown} KiB: {resident:?}");
}
