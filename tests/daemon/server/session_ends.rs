//! Leases end with connections that close at any time, and with exited processes.

use super::work::{acquire, connecting, daemon, free_permits, lease_of};
use crate::prelude::*;
use rustix::process::{Pid, Signal, kill_process};

/// How a client disconnects.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// Shuts down writing and reads to the end.
    Politely,
    /// Closes with unread replies.
    AtOnce,
    /// Shuts down reading before it writes, so that replies fail.
    Deaf,
}

#[test]
fn frees_leases_of_connections_cut_at_any_byte() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    let frames = [frame(&hello()), frame(&acquire(1, "u")), frame(&json!([8, 2])), frame(&acquire(3, "u"))];
    let ends: Vec<usize> = (1..=4).map(|count| frames[..count].concat().len()).collect();
    let bytes = frames.concat();
    for leaves in [Leaves::Politely, Leaves::AtOnce, Leaves::Deaf] {
        for cut in 0..=bytes.len() {
            let mut wire = daemon.connect();
            if matches!(leaves, Leaves::Deaf) {
                wire.stream.shutdown(std::net::Shutdown::Read).unwrap();
            }
            // After a failed reply the daemon may close before all is written.
            let written = wire.stream.write_all(&bytes[..cut]);
            if matches!(leaves, Leaves::Politely) {
                written.unwrap();
                wire.end_writing();
                let whole = ends.iter().filter(|end| **end <= cut).count();
                assert_eq!(wire.hear_all().len(), whole, "cut at byte {cut} of {ends:?}");
            }
            drop(wire);
            wait_until(&format!("both places are free, {leaves:?} at byte {cut}"), || {
                free_permits(&mut watcher, "u") == 2
            });
        }
    }
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
}

#[test]
fn drops_connections_of_processes_exited_before_accept() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    let before = daemon.log().len();
    // A session whose process is alive outlives its connections by 5 s.
    let mut waited_for = daemon.session(250, json!({"pid": std::process::id()}));
    lease_of(&waited_for.ask(&acquire(1, "v")));
    daemon.process.signal(libc::SIGSTOP);
    drop(waited_for);
    let mut crowd = connecting(&daemon, "for n in range(100): connect(n)\nprint('gone', flush=True)");
    assert_eq!((&*crowd.line(), crowd.process.exit_code()), ("gone\n", Some(0)));
    daemon.process.signal(libc::SIGCONT);
    let free_permits = eventually("both places are free", || {
        let free = ["u", "v"].map(|user| free_permits(&mut watcher, user));
        (free[0] == 2).then_some(free)
    });
    assert_eq!(free_permits, [2, 1], "the end of a process is not waited for");
    wait_until("none of 100 connections is left", || {
        let open = |kind| daemon.process.descriptors_of(kind);
        open("socket") < 20 && open("pidfd") <= 1
    });
    let log = daemon.log().split_off(before);
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// A process takes a permit and exits while its child keeps the connection; the next has the same pid.
const SAME_NUMBER: &str = r"
first = os.fork()
if first == 0:
    connect(1)
    if os.fork():
        os._exit(0)
    sys.stdin.read()
    os._exit(0)
os.waitpid(first, 0)
class Arguments(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in
        ('flags', 'pidfd', 'child_tid', 'parent_tid', 'exit_signal', 'stack', 'stack_size', 'tls', 'set_tid', 'set_tid_size')]
number = ctypes.c_int(first)
wish = Arguments(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(number), set_tid_size=1)
second = ctypes.CDLL(None, use_errno=True).syscall(435, ctypes.byref(wish), ctypes.sizeof(wish))
if second == 0:
    connect(2)
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
if second < 0:
    print('refused:', os.strerror(ctypes.get_errno()), flush=True)
sys.stdin.read()
";

#[test]
fn distinguishes_processes_with_reused_pid() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    // Stopped, the daemon sees the connection of the first process only when the second has its pid.
    daemon.process.signal(libc::SIGSTOP);
    let mut script = connecting(&daemon, SAME_NUMBER);
    daemon.process.signal(libc::SIGCONT);
    let line = script.line();
    let Ok(number) = line.trim().parse() else {
        eprintln!("SKIPPED: a process cannot be given a number here: {}", line.trim());
        return;
    };
    wait_until("the place of the first is free", || free_permits(&mut watcher, "u") == 1);
    kill_process(Pid::from_raw(number).unwrap(), Signal::KILL).unwrap();
    wait_until("the place of the second is free", || free_permits(&mut watcher, "u") == 2);
}
