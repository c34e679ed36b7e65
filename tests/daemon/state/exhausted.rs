//! Out of memory: the kernel kills the daemon, or it aborts. The next one restores its leases.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use super::daemon::{Daemon, Plan, eventually};
use super::msgpack::frame;
use super::restarts::{allowed, of_session, plan, state};
use super::trouble::often;
use super::wire::{Wire, hello, hit, verdict_of};

/// A control group with a memory limit. Removed when dropped.
struct Group {
    path: PathBuf,
    /// Files of the limit, the usage, and the count of kills.
    files: [&'static str; 3],
}

impl Group {
    /// Makes a group with the memory controller of either version; else prints that the test is skipped.
    fn new() -> Option<Group> {
        let name = format!("tidegate-test-{}", std::process::id());
        for (root, files) in [
            (
                "/sys/fs/cgroup/memory",
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"],
            ),
            ("/sys/fs/cgroup", ["memory.max", "memory.current", "memory.events"]),
        ] {
            let group = Group { path: PathBuf::from(root).join(&name), files };
            if fs::create_dir(&group.path).is_ok() && group.path.join(files[0]).exists() {
                return Some(group);
            }
        }
        eprintln!("SKIPPED: no control group with a limit of memory can be made here");
        None
    }

    fn read(&self, file: usize) -> String {
        fs::read_to_string(self.path.join(self.files[file])).unwrap()
    }

    /// Limits the memory to slightly above the current usage.
    fn close(&self) {
        let used: u64 = self.read(1).trim().parse().unwrap();
        fs::write(self.path.join(self.files[0]), (used + (256 << 10)).to_string()).unwrap();
    }

    fn kills(&self) -> u64 {
        let events = self.read(2);
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// An ACQUIRE of one of two permits of an organisation.
fn export(id: u64) -> serde_json::Value {
    json!([1, id, "api", [["job", "export", "org", "o"]]])
}

/// Takes a lease and all tokens of a user, and waits for a snapshot of both.
fn busy(daemon: &Daemon) -> (Wire, u64) {
    let mut wire = of_session(daemon, 1);
    let lease = wire.ask(&export(1))[9].as_u64().unwrap();
    assert_eq!(allowed(&mut wire, "u", 6), 5);
    // Each snapshot is a new file. The second one from now began after these requests.
    for _ in 0..2 {
        let file = || fs::metadata(state(&daemon.plan).join("tables")).map(|tables| tables.ino()).ok();
        let now = file();
        eventually("the tables are written", || (file() != now).then_some(()));
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
    assert_eq!(allowed(&mut wire, "u", 1), 0, "{}", daemon.log());
    assert_eq!(verdict_of(&wire.ask(&export(2))), 0);
    assert_eq!(verdict_of(&wire.ask(&export(3))), 1, "one of two places was held all the while");
    assert_eq!(wire.ask(&json!([2, 4, lease, 0])), json!([2, 4, true]));
    drop(wire);
    daemon
}

#[test]
fn restores_leases_after_oom_kill() {
    let Some(group) = Group::new() else { return };
    let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", group.path.display());
    let mut daemon = often(plan()).shell(Box::leak(script.into_boxed_str())).start();
    let (wire, lease) = busy(&daemon);
    group.close();
    let status = exhaust(&mut daemon);
    assert_eq!((status.signal(), group.kills()), (Some(libc::SIGKILL), 1), "{}", daemon.log());
    drop(wire);
    let mut plan = daemon.plan;
    plan.shell = None;
    takes_up(plan, lease);
}

#[test]
fn notes_its_end_when_memory_is_refused() {
    let mut daemon = often(plan()).start();
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
