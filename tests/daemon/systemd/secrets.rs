//! Callers' data stays private: in no core dump, and unreadable by other processes of the same user.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::json;

use super::daemon::{BINARY, Plan, Process, eventually};

/// The /proc directory of the daemon.
fn proc_of(plan: &Plan) -> std::path::PathBuf {
    let pid = fs::read_to_string(plan.path("pid")).unwrap();
    Path::new("/proc").join(pid.trim())
}

#[test]
fn service_forbids_core_dumps_and_ptrace() {
    let is_root = rustix::process::geteuid().is_root();
    // Root may read any process, so as root the daemon runs as another user.
    let run = if is_root {
        "shift; echo $$ >\"$PLAN/pid\"; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$PLAN/binary\" \"$@\""
    } else {
        "echo $$ >\"$PLAN/pid\"; exec \"$@\""
    };
    let plan = Plan::new().shell(run);
    fs::set_permissions(plan.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if is_root {
        fs::copy(BINARY, plan.path("binary")).unwrap();
    }
    for (managed, owner_is_root) in [(false, false), (true, true)] {
        let mut command = plan.command("log");
        command.env("PLAN", plan.directory.path()).env_remove("NOTIFY_SOCKET");
        if managed {
            command.env("NOTIFY_SOCKET", plan.path("nobody"));
        }
        let mut process = Process::start(&mut command);
        let log = || fs::read_to_string(plan.path("log")).unwrap();
        eventually("it serves", || {
            assert!(process.has_ended().is_none(), "{}", log());
            log().contains(" serving ").then_some(())
        });
        let about = proc_of(&plan);
        let limits = fs::read_to_string(about.join("limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let numbers: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
        assert_eq!(numbers, ["0", "0"], "{core}");
        // Files owned by root there are readable by root only: memory, environment, descriptors.
        let owner = fs::metadata(about.join("mem")).unwrap().uid();
        assert_eq!(owner == 0, owner_is_root, "managed: {managed}");
        process.signal(libc::SIGKILL);
        process.exit_code();
    }
}

/// Part of every secret text here and of no other.
const CANARY: &str = "canary9c41";

/// A page of the admin socket.
pub(crate) fn page(plan: &Plan, path: &str) -> String {
    let mut stream = std::os::unix::net::UnixStream::connect(plan.path("t.admin.sock")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn never_reveals_secrets() {
    let plan = Plan::new();
    let password = plan.path("password");
    fs::write(&password, CANARY).unwrap();
    let redis = format!("redis: {{url: \"redis://127.0.0.1:1\", password_file: {}}}", password.display());
    let daemon = plan.settings(&format!("log: {{level: debug}}\n{redis}")).start();
    let mut other = daemon.greeted();
    let requests = [
        json!([3, 2, "api", [["user", CANARY]]]),
        json!([3, 2, "api", [["user", CANARY]], 9]),
        json!([3, 2, "api", [["user", CANARY, "debug-panic", CANARY]]]),
        json!([3, 2, CANARY, [[CANARY, CANARY]]]),
        json!([3, 2, "api", [["user", CANARY]], CANARY]),
        json!([1, 2, "api", [["user", CANARY]], 1, CANARY, {"idem": CANARY, "missed": {"timeout": 1}}]),
        json!([7, 2, CANARY, CANARY, 400]),
    ];
    for request in requests.iter().cycle().take(140) {
        let mut wire = daemon.greeted();
        wire.send(request);
        wire.end_writing();
        wire.hear_all();
        // Other clients get only their own values.
        let heard = other.ask(&json!([3, 9, "api", [["user", "u1"]], 9])).to_string();
        assert!(!heard.contains(CANARY), "{heard}");
    }
    // Twenty panics, logged from two places each, up to the bound of each place.
    let log = daemon.log();
    for words in ["ERROR panicked: ", "ERROR a request panicked"].iter().filter(|_| cfg!(debug_assertions)) {
        assert_eq!(log.matches(*words).count(), 8, "{log}");
    }
    for path in ["/metrics", "/status", "/rules", "/readyz", "/healthz", "/"] {
        let told = page(&daemon.plan, path);
        assert!(told.starts_with("HTTP/1.1 "), "{path}: {told}");
        assert!(!told.contains(CANARY), "{path}: {told}");
    }
    assert!(page(&daemon.plan, "/metrics").contains("tidegate_decisions_total"));
    assert!(!log.contains(CANARY), "{log}");
}
