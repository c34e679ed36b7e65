//! Out of memory: the kernel kills the daemon, or it aborts. The next one restores its leases.

use super::machine::Group;
use super::restarts::{of_session, plan, state};
use crate::prelude::*;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The limit of a group, its usage, and the count of kills, under either version of control groups.
const LIMIT: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];
const USAGE: [&str; 2] = ["memory.usage_in_bytes", "memory.current"];
const EVENTS: [&str; 2] = ["memory.oom_control", "memory.events"];

fn read(group: &Group, files: [&str; 2]) -> String {
    files.iter().find_map(|file| fs::read_to_string(group.0.join(file)).ok()).unwrap()
}

/// Limits the memory to slightly above the current usage.
fn close(group: &Group) {
    let used: u64 = read(group, USAGE).trim().parse().unwrap();
    let limit = LIMIT.iter().map(|file| group.0.join(file)).find(|limit| limit.exists()).unwrap();
    fs::write(limit, (used + (256 << 10)).to_string()).unwrap();
}

fn kills(group: &Group) -> u64 {
    let events = read(group, EVENTS);
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
}

/// An ACQUIRE of one of two permits of an organisation.
fn export(id: u64) -> Value {
    json!([1, id, "api", [["job", "export", "org", "o"]]])
}

/// Takes a lease and all tokens of a user, and waits for a snapshot of both.
fn busy(daemon: &Daemon) -> (Wire, u64) {
    let mut wire = of_session(daemon, 1);
    let lease = wire.ask(&export(1))[9].as_u64().unwrap();
    assert_eq!(wire.allowed("u", 6), 5);
    // Each snapshot is a new file. The second one from now began after these requests.
    for _ in 0..2 {
        let file = || fs::metadata(state(&daemon.plan).join("tables")).map(|tables| tables.ino()).ok();
        let now = file();
        wait_until("the tables are written", || file() != now);
    }
    (wire, lease)
}

/// Makes the daemon allocate until it ends; its replies are complete.
fn exhaust(daemon: &mut Daemon) -> ExitStatus {
    let mut crowd = Vec::new();
    let request = [frame(&hello()), frame(&hit(1, "v"))].concat();
    eventually("it has no memory left", || {
        for _ in 0..20 {
            let Ok(mut stream) = UnixStream::connect(daemon.socket()) else { break };
            // An incomplete frame of the largest size.
            let _ = stream.write_all(&[&request[..], &[0, 0, 0x40, 0], &[0xc0; 16_000]].concat());
            crowd.push(Wire::over(stream));
        }
        daemon.process.has_ended()
    });
    for mut wire in crowd {
        wire.hear_all();
    }
    daemon.process.has_ended().unwrap()
}

/// Asserts that the lease and the charges are restored; then ends the lease.
fn takes_up(plan: Plan, lease: u64) -> Daemon {
    let daemon = plan.start();
    let mut wire = of_session(&daemon, 1);
    assert_eq!(wire.allowed("u", 1), 0, "{}", daemon.log());
    assert_eq!(verdict_of(&wire.ask(&export(2))), 0);
    assert_eq!(verdict_of(&wire.ask(&export(3))), 1, "one of two places was held all the while");
    assert_eq!(wire.ask(&json!([2, 4, lease, 0])), json!([2, 4, true]));
    drop(wire);
    daemon
}

#[test]
fn restores_leases_after_oom_kill() {
    let Some(group) = Group::of("memory", LIMIT) else { return };
    let mut daemon = plan().writes_state_every(15).shell(group.script()).start();
    let (wire, lease) = busy(&daemon);
    close(&group);
    let status = exhaust(&mut daemon);
    assert_eq!((status.signal(), kills(&group)), (Some(libc::SIGKILL), 1), "{}", daemon.log());
    drop(wire);
    let mut plan = daemon.plan;
    plan.shell = None;
    takes_up(plan, lease);
}

#[test]
fn notes_its_end_when_memory_is_refused() {
    let mut daemon = plan().writes_state_every(15).start();
    let (wire, lease) = busy(&daemon);
    let pid = daemon.process.id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let used: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let most = Some((used + 256) << 10);
    let pid = Pid::from_raw(pid.cast_signed());
    prlimit(pid, Resource::Data, Rlimit { current: most, maximum: most }).unwrap();
    let status = exhaust(&mut daemon);
    let log = daemon.log();
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{log}");
    assert!(log.contains("memory allocation of"), "{log}");
    assert!(fs::metadata(state(&daemon.plan).join("crashes")).unwrap().len() > 0, "{log}");
    drop(wire);
    let daemon = takes_up(daemon.plan, lease);
    assert!(!daemon.log().contains("CRASH LOOP"), "{}", daemon.log());
}
