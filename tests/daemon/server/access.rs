//! Access to domains and pools: every op, of users with and without permission.

use crate::prelude::*;
use std::fmt::Write;
use std::os::unix::process::CommandExt;

/// An unprivileged user without files or processes.
const OTHER: u32 = 65_534;

/// A daemon with the domains `api` and `open` and these settings.
fn daemon(settings: &str) -> Daemon {
    let rules = "domain: open\nlimits: [{name: all, key: [], rate: 1/h, burst: 100}]\n";
    Plan::new().rules("open.yaml", rules).settings(settings).open_to_all().start()
}

fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Every op that names a domain.
fn five_requests(domain: &str) -> [Value; 5] {
    [
        json!([1, 11, domain, [["user", "u1"]]]),
        json!([3, 13, domain, [["user", "u1"]]]),
        json!([4, 14, domain, [["user", "u1"]]]),
        json!([5, 15, domain, [["user", "u1"]], 1]),
        json!([5, null, domain, [["user", "u1"]], 1]),
    ]
}

fn assert_turned_away(reply: &Value, id: u64, user: u32) {
    assert_eq!(error_of(reply), (Some(id), 11), "{reply}");
    assert_eq!(reply[3], format!("the domain `api` is not open to user {user}"));
}

#[test]
fn denies_closed_domain_and_keeps_connection() {
    let mine = this_user();
    // Being root or the daemon's own user gives no access.
    let daemon = daemon(&format!("domains: {{api: {{uids: [{}]}}, open: {{uids: [33, {mine}]}}}}", mine + 1));
    let mut wire = daemon.greeted();
    for ask in five_requests("api") {
        match ask[1].as_u64() {
            Some(id) => assert_turned_away(&wire.ask(&ask), id, mine),
            // A request without an id gets no reply: the next reply is the ping's.
            None => wire.send(&ask),
        }
        wire.assert_served();
    }
    let decided = wire.ask(&json!([3, 21, "open", [["user", "u1"]]]));
    assert_eq!((verdict_of(&decided), &decided[6]), (0, &json!(99)), "{decided}");
    let line = daemon.await_log(&["domain=\"api\"", "not open to this user", &format!("user={mine}")]);
    assert!(line.contains("domains.api.uids"), "{line}");
    let status = daemon.run("status");
    let warning =
        format!("refused without a check: 5 requests (not_allowed 5); `api` is closed to user {mine}");
    assert!(status.contains(&warning), "{status}");
    let found = daemon.doctor(&["--as", &mine.to_string()]);
    assert!(finding(&found, "domains").contains("`api`; requests about them are refused"), "{found:?}");
    // Commands refuse what clients refuse.
    for words in ["hit api user=u1", "peek api user=u1", "acquire api user=u1 -- false"] {
        let (code, _, printed) = daemon.outcome(words);
        assert_eq!(code, Some(75), "{words}: {printed}");
        assert!(printed.contains("tidegate: shed, not_allowed: the domain `api` is not open"), "{printed}");
    }
}

#[test]
fn accepts_reports_of_denied_requests() {
    let daemon = daemon(&format!("domains: {{api: {{uids: [{}]}}}}", this_user() + 1));
    let mut wire = daemon.greeted();
    let reply = wire.ask(&json!([3, 1, "api", [[]], 1, null, {"missed": {"timeout": 7}}]));
    assert_turned_away(&reply, 1, this_user());
    daemon.await_log(&["made without tidegate", "timeout=7"]);
}

#[test]
fn warns_of_listed_domain_without_rules() {
    let daemon = daemon("domains: {api: {uids: []}, apj: {uids: []}}");
    let reply = daemon.greeted().ask(&json!([3, 1, "api", [["user", "u1"]]]));
    assert_eq!(verdict_of(&reply), 0, "{reply}");
    daemon.await_log(&["tidegate.yaml:2:", "no rules belong to the domain `apj`"]);
    assert!(!daemon.log().contains("domain `api`"), "{}", daemon.log());
    let check = Command::new(BINARY).arg("check").arg(daemon.plan.path("tidegate.yaml")).output();
    let printed = String::from_utf8(check.unwrap().stdout).unwrap();
    has(&printed, &["no rules belong to the domain `apj`", "2 warnings"]);
}

/// Sends requests from a process of another user; returns all replies.
pub(crate) fn other_user(daemon: &Daemon, requests: &[Value]) -> Vec<Value> {
    let hello = hello();
    let frames: Vec<u8> = std::iter::once(&hello).chain(requests).flat_map(frame).collect();
    let hex = frames.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]); \
        s.sendall(bytes.fromhex(sys.argv[2])); s.shutdown(socket.SHUT_WR); \
        sys.stdout.buffer.write(b''.join(iter(lambda: s.recv(65536), b'')))";
    let mut client = Command::new("python3");
    client.args(["-c", script]).arg(daemon.socket()).arg(hex).current_dir(Path::new("/"));
    let output = client.uid(OTHER).gid(OTHER).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut bytes, mut replies) = (&output.stdout[..], Vec::new());
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (payload, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        replies.push(read(payload));
        bytes = rest;
    }
    assert_eq!(replies.remove(0)[0], 0, "WELCOME");
    replies
}

#[test]
fn opens_pool_to_configured_users_and_slots() {
    let mine = this_user();
    let settings = format!(
        "pools: {{web: {{uids: [{mine}], slots_max: 8}}, closed: {{uids: [{}]}}, open: {{}}}}",
        mine + 1
    );
    let daemon = Plan::new().settings(&settings).start();
    let hello = |info: Value| json!([0, 1, 1, info]);
    for info in [
        json!({"pool": "web", "slots": 8}),
        json!({"pool": "web"}),
        json!({"pool": "open", "slots": u32::MAX}),
        json!({"pool": "elsewhere", "slots": 1_000}),
    ] {
        let mut wire = daemon.connect();
        assert_eq!(wire.ask(&hello(info.clone()))[0], 0, "{info}");
        wire.assert_served();
    }
    // Not permitted: the connection waits for another HELLO.
    let mut wire = daemon.connect();
    let reply = wire.ask(&hello(json!({"pool": "closed"})));
    assert_eq!(error_of(&reply), (Some(1), 11), "{reply}");
    assert_eq!(reply[3], format!("the pool `closed` is not open to user {mine}"));
    assert_eq!(wire.ask(&hello(json!({"pool": "open"})))[0], 0);
    wire.assert_served();
    // Too many slots would make a full pool look idle.
    let mut wire = daemon.connect();
    let reply = wire.ask(&hello(json!({"pool": "web", "slots": 9})));
    assert_eq!(error_of(&reply), (Some(1), 9), "{reply}");
    assert_eq!(reply[3], "9 slots are more than the pool `web` allows a process, which is 8");
    wire.assert_ended();
    let line = daemon.await_log(&["WARN", "the pool `closed` is not open to user"]);
    assert!(line.contains("`pools.closed` in the settings"), "{line}");
}
