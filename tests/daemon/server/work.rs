//! Rules, and processes to kill, for tests of leases.

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

/// Connections that send HELLO with this process's pid and acquire a permit of `u`, without reading.
const CONNECT: &str = r"
import ctypes, os, signal, socket, struct, sys
kept = []
def connect(session, between=lambda: None):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    between()
    hello = b'\x94\x00\x01\x01\x82\xa7session\xc4\x10' + bytes([session] * 16) \
        + b'\xa3pid\xce' + struct.pack('>I', os.getpid())
    take = b'\x94\x01\x02\xa4work\x91\x92\xa4user\xa1u'
    s.sendall(b''.join(struct.pack('>I', len(part)) + part for part in (hello, take)))
    kept.append(s)
";

/// Runs Python with `connect`.
pub(crate) fn connecting(daemon: &Daemon, rest: &str) -> Script {
    Script::start(None, &format!("{CONNECT}{rest}"), &daemon.socket(), &[])
}
