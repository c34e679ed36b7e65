//! A failing or slow disk: decisions continue, the previous file stays valid, the failure is logged.

use super::restarts::{end, plan, state};
use super::strace::{Fault, calls, may_trace};
use crate::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Users besides the observed one, so that a snapshot takes several writes.
const USERS: u64 = 12_000;

/// A stored state in which `u` has two tokens left.
fn kept() -> Plan {
    let daemon = plan().writes_state_every(15).start();
    let mut wire = daemon.greeted();
    assert_eq!(wire.allowed("u", 3), 3);
    for first in (0..USERS).step_by(100) {
        let hits: Vec<u8> = (first..first + 100).flat_map(|id| frame(&hit(id, &format!("o{id}")))).collect();
        wire.send_bytes(&hits);
        (0..100).for_each(|_| assert_eq!(verdict_of(&wire.hear().unwrap()), 0));
    }
    // A slow machine does not write all of it at exit.
    let written = writes(&daemon);
    wait_until("all of it is written", || writes(&daemon) > written + 1.0);
    let plan = daemon.stopped();
    assert!(fs::metadata(state(&plan).join("tables")).unwrap().len() > 3 * 64 * 1_024, "several pieces");
    plan
}

fn failures(daemon: &Daemon) -> f64 {
    metric(daemon, "tidegate_state_write_failures_total").unwrap()
}

fn writes(daemon: &Daemon) -> f64 {
    metric(daemon, "tidegate_state_writes_total").unwrap()
}

/// A client that sends requests continuously and records their latency.
struct Client {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<Duration>>,
}

impl Client {
    fn start(daemon: &Daemon) -> Client {
        let (mut wire, stop) = (daemon.greeted(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let asking = thread::spawn(move || {
            let mut took = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let begun = read_boot_nanos();
                assert!(verdict_of(&wire.ask(&hit(1, "asker"))) <= 1, "it is judged");
                took.push(Duration::from_nanos(read_boot_nanos() - begun));
            }
            took
        });
        Client { stop, asking }
    }

    /// Returns the latencies in ascending order.
    fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let mut took = self.asking.join().expect("every request is answered");
        took.sort_unstable();
        took
    }
}

/// System calls that fail during a snapshot: the call, its first failure, and whether the disk recovers.
const FAULTS: [(&str, u32, bool); 4] = [
    // The first sync, and one after two successes.
    ("fsync", 1, false),
    ("fsync", 3, true),
    // In the middle of the tables.
    ("write", 2, true),
    // The last step.
    ("/^rename", 1, false),
];

#[test]
fn keeps_last_tables_until_disk_recovers() {
    for (calls, first, recovers) in FAULTS {
        let last = if recovers { format!("..{}", first + 2) } else { "+".to_owned() };
        fails(Fault { file: "tables.new", calls, what: &format!("error=EIO:when={first}{last}") }, recovers);
    }
}

/// Runs a daemon with a fault that ends after three failures, or with the daemon; then one without a fault.
fn fails(fault: Fault<'_>, recovers: bool) {
    needs!(may_trace());
    let daemon = kept().with(fault).start();
    let client = Client::start(&daemon);
    daemon.await_log(&["WARN", "cannot be written", "Input/output error"]);
    let tables = state(&daemon.plan).join("tables");
    let before = fs::read(&tables).unwrap();
    assert_eq!(daemon.greeted().allowed("u", 1), 1);
    let (failed, written) = (failures(&daemon), writes(&daemon));
    assert!(failed >= 1.0);
    if recovers {
        daemon.await_log(&["INFO", "can be written again"]);
        assert_eq!(failures(&daemon), 3.0, "{fault:?}");
        let written = writes(&daemon);
        wait_until("it is written again and again", || writes(&daemon) > written + 1.0);
        assert!(metric(&daemon, "tidegate_state_last_write_timestamp_seconds") > Some(1e9));
    } else {
        wait_until("it is tried again", || failures(&daemon) >= failed + 3.0);
        assert_eq!(writes(&daemon), written);
    }
    assert!(client.stop().len() > 1);
    let (plan, log) = end(daemon);
    assert_eq!(log.matches("cannot be written").count(), 1, "said once: {log}");
    assert_eq!(log.matches("can be written again").count(), usize::from(recovers), "{log}");
    assert_eq!(log.contains("could not be written at the end"), !recovers, "{log}");
    assert_eq!(fs::read(&tables).unwrap() == before, !recovers, "{fault:?}");
    assert!(!state(&plan).join("tables.new").exists(), "nothing half-written stays");
    assert_no_sync_is_tried_again(&plan);
    // Only tokens spent since the last snapshot are granted again.
    let daemon = plan.without_fault().start();
    daemon.await_log(&["restored the state"]);
    assert_eq!(daemon.greeted().allowed("u", 6), if recovers { 1 } else { 2 }, "{fault:?}");
    assert!(!state(&daemon.plan).join("tables.bad").exists());
}

/// After a failed sync the kernel may drop the pages and report success next time: retry with a new file.
fn assert_no_sync_is_tried_again(plan: &Plan) {
    let calls = calls(&plan.path("trace"));
    let syncs = calls.iter().enumerate().filter(|(_, call)| call.starts_with("fsync"));
    let mut failed = 0;
    for (at, call) in syncs {
        failed += usize::from(call == "fsync!");
        let before = calls[..at].iter().rposition(|call| call.starts_with("open")).expect("it was opened");
        assert!(!calls[before..at].iter().any(|call| call.starts_with("fsync")), "{:?}", &calls[before..=at]);
        if call == "fsync!" {
            let next = calls.get(at + 1).map_or("unlink", String::as_str);
            assert!(next.starts_with("unlink"), "{next} after a sync that failed");
        }
    }
    assert!(failed > 0 || !calls.iter().any(|call| call == "fsync!"));
}

#[test]
fn leaves_whole_file_when_directory_sync_fails() {
    needs!(may_trace());
    // The new file is in place already: a power failure could at most restore the old one.
    let fault = Fault { file: "", calls: "fsync", what: "error=EIO" };
    let daemon = kept().with(fault).start();
    daemon.await_log(&["WARN", "cannot be written", "Input/output error"]);
    assert_eq!(daemon.greeted().allowed("u", 1), 1);
    let failed = failures(&daemon);
    wait_until("it is tried again", || failures(&daemon) > failed + 1.0);
    let plan = daemon.killed();
    let daemon = plan.without_fault().start();
    daemon.await_log(&["restored the state"]);
    assert_eq!(daemon.greeted().allowed("u", 6), 1);
}

/// The slow disk's delay of a sync.
const STALL: Duration = Duration::from_secs(20);

#[test]
fn slow_sync_delays_no_decision_and_exit_briefly() {
    needs!(may_trace());
    let what = format!("delay_enter={}s:when=2", STALL.as_secs());
    let daemon = kept().with(Fault { file: "tables.new", calls: "fsync", what: &what }).start();
    wait_until("the first is written", || writes(&daemon) == 1.0);
    let (tables, unfinished) = (state(&daemon.plan).join("tables"), state(&daemon.plan).join("tables.new"));
    wait_until("the second is begun", || unfinished.exists());
    let before = fs::read(&tables).unwrap();
    let begun = read_boot_nanos();
    let client = Client::start(&daemon);
    // A hundred writes would fit into this time.
    sleep(Duration::from_millis(1_500));
    let took = client.stop();
    assert_eq!(daemon.greeted().allowed("u", 1), 1);
    assert!(unfinished.exists() && writes(&daemon) == 1.0, "the disk still has it");
    let (p99, most) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    println!("{} decisions beside a sync that hangs: p99 {p99:?}, most {most:?}", took.len());
    // A decision that waited for the disk would take the rest of the delay; a busy machine takes far less.
    assert!(most < STALL / 10, "{most:?} for an answer");
    let stalled = Duration::from_nanos(read_boot_nanos() - begun);
    assert!(stalled < STALL / 2, "this machine is too slow to tell: {stalled:?}");
    // The stop waits for 0.8 s as documented; the rest is slack for a busy machine, far below the delay.
    let tracer = daemon.tracer();
    let begun = read_boot_nanos();
    daemon.process.signal(libc::SIGTERM);
    wait_until("all has ended but the thread that the disk has", || daemon.is_over());
    let took = Duration::from_nanos(read_boot_nanos() - begun);
    println!("ended {took:?} after TERM");
    assert!(took < STALL / 4, "{took:?} to the end");
    assert!(daemon.log().contains("could not be written at the end"), "{}", daemon.log());
    assert_eq!(fs::read(&tables).unwrap(), before);
    // The next daemon does not wait for the last one's sync, and restores the last complete snapshot.
    let Daemon { process: mut last, plan } = daemon;
    let daemon = plan.without_fault().start();
    daemon.await_log(&["restored the state"]);
    assert_eq!(daemon.greeted().allowed("u", 6), 2);
    assert!(last.has_ended().is_none(), "the disk still has it");
    tracer.end();
    assert_eq!(last.exit_code(), Some(0));
    let plan = daemon.stopped();
    assert!(!unfinished.exists(), "what the end cut off is gone with the next writing");
    let daemon = plan.start();
    assert_eq!(daemon.greeted().allowed("u", 1), 0);
}

#[test]
fn retries_failed_write_of_rules() {
    needs!(may_trace());
    let fault = Fault { file: "rules.new", calls: "fsync", what: "error=EIO:when=1" };
    let daemon = plan().with(fault).start();
    daemon.await_log(&["WARN", "the rules cannot be kept", "Input/output error"]);
    assert_eq!(daemon.greeted().allowed("u", 6), 5);
    // The retry needs no change or signal.
    daemon.await_log(&["INFO", "the rules can be kept again"]);
    assert!(fs::read_to_string(state(&daemon.plan).join("rules")).unwrap().contains("per-user"));
    let (plan, log) = end(daemon);
    assert_eq!(log.matches("the rules cannot be kept").count(), 1, "{log}");
    assert!(!state(&plan).join("rules.new").exists());
}
