//! The stop: fast under load, and immediate on a second signal.

use super::machine::timed;
use super::tries;
use crate::prelude::*;
use crate::state::strace::may_trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// With every optional thread, and pools with signals.
fn busy_plan() -> Plan {
    let rules = "domain: api\npriorities: [high, low]\nlimits:\n  - {name: per-user, key: [user], rate: 1/h, burst: 5}\n\
                 shed:\n  - {pool: web, slots: 4, brake: {}, signals: {cpu: {}, cpu_pressure: {}, io_pressure: {}}}\n";
    Plan::new().with_state().rules("api.yaml", rules)
}

/// Runs clients and scrapes until the stop. The result returns the number of answered requests.
fn load(daemon: &Daemon, clients: usize) -> impl FnOnce() -> usize + use<> {
    let answered = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for client in 0..clients {
        let mut wire = daemon.greeted();
        let answered = Arc::clone(&answered);
        threads.push(thread::spawn(move || {
            for id in 0.. {
                let request = frame(&hit(id, &format!("u{client}-{id}")));
                if wire.stream.write_all(&request).is_err() {
                    return;
                }
                match wire.hear() {
                    Some(reply) if reply[0] == 1 => answered.fetch_add(1, Ordering::Relaxed),
                    _ => return,
                };
            }
        }));
    }
    let (admin, over) = (admin_socket(daemon), Arc::clone(&is_over));
    threads.push(thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let Ok(mut stream) = UnixStream::connect(&admin) else { return };
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    }));
    move || {
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        answered.load(Ordering::Relaxed)
    }
}

#[test]
fn ends_within_a_second_under_load() {
    let mut longest = Duration::ZERO;
    for _ in 0..tries(5) {
        let mut daemon = busy_plan().start();
        let end_load = load(&daemon, 4);
        get(&daemon, "/status");
        // Half a request of an operator is not waited for.
        let mut half = UnixStream::connect(admin_socket(&daemon)).unwrap();
        half.write_all(b"POST /reload HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{").unwrap();
        sleep(Duration::from_millis(50));
        let (code, took) = timed(|| {
            daemon.process.signal(libc::SIGTERM);
            daemon.process.exit_code()
        });
        assert_eq!(code, Some(0), "{}", daemon.log());
        assert!(took <= Duration::from_secs(1), "{took:?}: {}", daemon.log());
        longest = longest.max(took);
        assert!(end_load() > 0, "there was a load");
        assert!(daemon.plan.path("state/tables").exists() && !admin_socket(&daemon).exists());
    }
    eprintln!("the longest took {longest:?}");
}

#[test]
fn second_signal_exits_during_table_write() {
    needs!(may_trace());
    let exits = |first, second| {
        let plan = busy_plan().writes_state_every(60_000);
        let mut daemon = plan.traced("", "fsync", "fsync:delay_enter=700ms").start();
        Wire::greeted(&daemon.socket()).assert_served();
        daemon.process.signal(first);
        wait_until("the tables are being written", || daemon.plan.path("state/tables.new").exists());
        daemon.process.signal(second);
        assert_eq!(daemon.process.exit_code(), Some(1), "{}", daemon.log());
        assert!(!daemon.log().contains("drained"), "{}", daemon.log());
    };
    thread::scope(|scope| {
        // The same signal within a moment counts once.
        scope.spawn(|| exits(libc::SIGTERM, libc::SIGINT));
        scope.spawn(|| exits(libc::SIGINT, libc::SIGTERM));
    });
}
