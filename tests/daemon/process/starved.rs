//! A machine without CPU time or threads to spare, and a daemon without clients: its CPU time and its memory.

use std::fmt::Write as _;

use rustix::process::{getpriority_process, setpriority_process};
use tidegate::sys::{read_slice, request_short_slice};

use super::machine::Group;
use crate::prelude::*;

/// The slices of a daemon's decision threads in nanoseconds. `None`: this kernel does not show them.
fn slices(daemon: &Daemon) -> Option<Vec<u64>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.process.id())).unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let decides = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().starts_with("decide-");
    let slice = |task: PathBuf| {
        let text = fs::read_to_string(task.join("sched")).ok()?;
        text.lines().find(|line| line.starts_with("se.slice"))?.rsplit_once(':')?.1.trim().parse().ok()
    };
    tasks.filter(decides).map(slice).collect()
}

#[test]
fn decides_beside_sixteen_spinning_processes_and_without_another_thread() {
    // As many as the daemon's threads without its helpers.
    let Some(group) = Group::of("pids", ["pids.max"; 2]) else { return };
    fs::write(group.0.join("pids.max"), "6").unwrap();
    let daemon = Plan::new().shell(group.script()).start();
    daemon.await_log(&["WARN", "a thread cannot be started"]);
    let mut wire = daemon.greeted();
    let spin = |_| Process::start(Command::new("sh").args(["-c", "while :; do :; done"]));
    let _spinners: Vec<Process> = (0..16).map(spin).collect();
    let verdicts = (0..40).map(|id| {
        // Sleep, so that each request needs a CPU anew.
        sleep(Duration::from_millis(1));
        verdict_of(&wire.ask(&hit(id, "u1")))
    });
    assert_eq!(verdicts.filter(|verdict| *verdict == 0).count(), 5, "it limits");
    // A short slice shortens the wait for a CPU; `make bench` measures it.
    match slices(&daemon) {
        Some(slices) if has_slices() => assert_eq!(slices, [100_000], "{}", daemon.log()),
        _ => eprintln!("SKIPPED in part: this kernel gives no short slices, or does not say them"),
    }
}

fn has_slices() -> bool {
    // Use a new thread, as the slice stays.
    let result = thread::spawn(|| request_short_slice().and_then(|()| read_slice()));
    result.join().unwrap().is_ok_and(|slice| !slice.is_zero())
}

#[test]
fn short_slice_keeps_nice_value() {
    let thread = thread::spawn(|| {
        // On Linux each thread has its own nice value.
        setpriority_process(None, 7).unwrap();
        request_short_slice().unwrap();
        getpriority_process(None).unwrap()
    });
    assert_eq!(thread.join().unwrap(), 7);
}

#[test]
fn wakes_rarely_without_clients() {
    let daemon = daemon();
    // The start, and a scheduler that is late, make a span fail.
    eventually("a span with few wake-ups", || {
        let waits = || ["tidegate", "decide-0"].map(|thread| daemon.process.waits_of(thread));
        let (begin, before) = (read_boot_nanos(), waits());
        sleep(Duration::from_secs(1));
        let after = waits();
        let ticks = (read_boot_nanos() - begin) / 250_000_000;
        let [accepting, deciding] = [after[0] - before[0], after[1] - before[1]];
        // With a tick every 250 ms it was two for each tick, and one of the decision thread.
        (accepting <= ticks && deciding <= ticks / 4).then_some(())
    });
    daemon.greeted().assert_served();
}

#[test]
fn frees_replaced_rules_without_clients() {
    let rules = |rate: u32| {
        let mut text = "domain: api\nlimits:\n".to_owned();
        for number in 0..5_000 {
            writeln!(
                text,
                "  - {{name: r{number}, match: {{path: /{number}}}, key: [user], rate: {rate}/s}}"
            )
            .unwrap();
        }
        text
    };
    let daemon = Plan::new().rules("api.yaml", &rules(1)).start();
    let kib = || daemon.process.resident_kib();
    let begin = kib();
    for rate in [2, 3] {
        fs::write(daemon.plan.path("rules/api.yaml"), rules(rate)).unwrap();
        daemon.run("reload");
    }
    // A decision thread without requests held those before, and the heap what reading them took: 2.6 times as much.
    eventually("the memory of one set of rules is left", || (kib() < 2 * begin).then_some(()));
}
