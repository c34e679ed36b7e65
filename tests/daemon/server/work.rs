//! Rules, sessions and processes to kill, for tests of leases.

use crate::prelude::*;

/// Two permits for each user, and limits of requests.
pub(crate) const RULES: &str = "\
domain: work
exempt: [{name: probes, match: {path: /healthz}}]
concurrency:
  - {name: at-once, key: [user], max: 2}
  - {name: dark, match: {dark: yes}, key: [dark], max: 1, mode: shadow}
  - {name: short, match: {short: yes}, key: [short], max: 1, expires: 1s}
limits:
  - {name: failures, match: {login: '*'}, key: [login], rate: 1/h, burst: 2, refund_on: ok}
  - {name: rated, match: {rated: '*'}, key: [rated], rate: 1/h, burst: 3}
  - {name: paced, match: {job: mail}, key: [], algorithm: leaky_bucket, rate: 1/min, queue: 1}
";

pub(crate) fn daemon() -> Daemon {
    Plan::new().rules("work.yaml", RULES).start()
}

pub(crate) fn acquire(id: u64, user: &str) -> Value {
    json!([1, id, "work", [["user", user]]])
}

pub(crate) fn lease_of(reply: &Value) -> u64 {
    assert_eq!(reply[0], 1, "{reply}");
    assert!(reply[2] == 0 || reply[2] == 3, "granted: {reply}");
    reply[9].as_u64().unwrap_or_else(|| panic!("a lease: {reply}"))
}

/// The free permits of a user.
pub(crate) fn free_permits(wire: &mut Wire, user: &str) -> u64 {
    let reply = wire.ask(&json!([4, 4_712, "work", [["user", user]]]));
    assert_eq!((&reply[3], &reply[4]), (&json!("at-once"), &json!(2)), "{reply}");
    reply[6].as_u64().unwrap()
}

/// A process that holds two permits of a user.
pub(crate) struct Holder {
    pub(crate) process: Process,
    child: u32,
}

/// When a holder starts its child.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forks {
    /// After its leases: the child shares its socket.
    After,
    /// After connecting: the child takes the leases, and the holder exits.
    Before,
}

impl Holder {
    pub(crate) fn start(daemon: &Daemon, session: u8, user: &str, forks: Forks) -> Holder {
        let forks = if forks == Forks::After { "1" } else { "2" };
        let arguments = [session.to_string(), user.to_owned(), forks.to_owned()];
        let mut script = Script::start(None, HOLDER, &daemon.socket(), &arguments);
        let line = script.line();
        let child = line.trim().parse().unwrap_or_else(|_| panic!("it holds its places: {line}"));
        Holder { process: script.process, child }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let child = rustix::process::Pid::from_raw(self.child.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
}

/// Sends HELLO with its pid, takes two leases, prints a line and sleeps.
const HOLDER: &str = r"
import os, socket, struct, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
def ask(payload):
    s.sendall(struct.pack('>I', len(payload)) + payload)
    length, = struct.unpack('>I', s.recv(4, socket.MSG_WAITALL))
    return s.recv(length, socket.MSG_WAITALL)
if sys.argv[4] == '2' and os.fork():
    os._exit(0)
user = sys.argv[3].encode()
session = bytes([int(sys.argv[2])] * 16)
welcome = ask(b'\x94\x00\x01\x01\x82\xa7session\xc4\x10' + session + b'\xa3pid\xce' + struct.pack('>I', os.getpid()))
assert welcome[1] == 0, welcome
for request in (2, 3):
    granted = ask(b'\x94\x01' + bytes([request]) + b'\xa4work\x91\x92\xa4user' + bytes([0xa0 + len(user)]) + user)
    assert granted[3] == 0, granted
child = os.fork() if sys.argv[4] == '1' else 0
if child:
    print(child, flush=True)
elif sys.argv[4] == '2':
    print(os.getpid(), flush=True)
time.sleep(120)
";
