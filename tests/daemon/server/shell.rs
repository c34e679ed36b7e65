//! `tidegate hit`, `tidegate peek` and `tidegate bench` in a shell.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::caps::greeted_at_last;
use super::daemon::{BINARY, Plan, daemon};
use super::msgpack::frame;

pub(crate) fn run(socket: &Path, arguments: &[&str]) -> Output {
    command(socket, arguments).output().unwrap()
}

pub(crate) fn command(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).env("TIDEGATE_SOCKET", socket);
    command.env_remove("TIDEGATE_DISABLE").env_remove("XDG_RUNTIME_DIR");
    command
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn hit_exits_with_0_until_limit_then_75() {
    let daemon = daemon();
    let socket = daemon.socket();
    for left in (0..5).rev() {
        let output = run(&socket, &["hit", "api", "user=u1", "method=POST"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed = text(&output.stdout);
        assert!(printed.starts_with(&format!("allow  per-user: {left} of 5 left")), "{printed}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    let output = run(&socket, &["hit", "api", "user=u1"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.starts_with("limit  per-user: 0 of 5 left, try again in "), "{printed}");
    assert!(printed.contains("\nhelp   https://example.com/limits\n"), "{printed}");
    let output = run(&socket, &["hit", "api", "user=u2", "--cost", "6"]);
    assert_eq!(output.status.code(), Some(75));
    assert!(text(&output.stdout).contains("never"), "{output:?}");
}

#[test]
fn exit_code_stands_when_output_cannot_be_written() {
    let daemon = daemon();
    let (closed, _) = UnixStream::pair().unwrap();
    closed.shutdown(std::net::Shutdown::Write).unwrap();
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || Stdio::from(std::os::fd::OwnedFd::from(closed.try_clone().unwrap()));
    let allowed = &["hit", "api", "user=u1"][..];
    let refused = &["hit", "api", "user=u1", "--cost", "6"][..];
    let acquired = &["acquire", "api", "user=u1", "--cost", "6", "--", "true"][..];
    let missing = &["check", "/nonexistent"][..];
    for (arguments, code) in
        [(allowed, 0), (refused, 75), (acquired, 75), (missing, 1), (&["gen", "completions", "bash"][..], 1)]
    {
        let mut command = command(&daemon.socket(), arguments);
        let status = command.stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "full: {arguments:?}");
        // The reader of a pipe may read a part and close it.
        let code = if code == 1 && arguments != missing { 0 } else { code };
        let status = command.stdout(closed()).stderr(closed()).status().unwrap();
        assert_eq!(status.code(), Some(code), "closed: {arguments:?}");
    }
}

#[test]
fn refuses_a_cost_given_twice() {
    let daemon = daemon();
    for verb in ["hit", "peek", "explain", "why"] {
        let output = run(&daemon.socket(), &[verb, "api", "user=u1", "--cost", "5", "--cost", "requests=3"]);
        assert_eq!(output.status.code(), Some(2), "{verb}: {output:?}");
        assert!(text(&output.stderr).contains("--cost is given twice in requests"), "{verb}: {output:?}");
    }
}

#[test]
fn peek_charges_nothing_and_prints_json() {
    let daemon = daemon();
    let socket = daemon.socket();
    for _ in 0..7 {
        let output = run(&socket, &["peek", "api", "user=u1", "--all", "--format", "json"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&printed["verdict"], &printed["rule"], &printed["remaining"]),
            (&json!("allow"), &json!("per-user"), &json!(5))
        );
        assert_eq!(printed["all"][0][0], "per-user");
        assert_eq!(printed["degraded"], false);
    }
    let output = run(&socket, &["peek", "api", "user=u1", "--all"]);
    let printed = text(&output.stdout);
    assert!(printed.ends_with("rule   per-user: 5 of 5 left, full\n"), "{printed}");
    let none = run(&socket, &["peek", "api", "user=u1", "--cost", "tokens=9"]);
    assert!(text(&none.stdout).starts_with("allow  not limited"), "no rule counts tokens: {none:?}");
    run(&socket, &["hit", "api", "user=u1", "--cost", "5"]);
    let output = run(&socket, &["peek", "api", "user=u1"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
}

#[test]
fn exits_with_2_on_bad_arguments() {
    let daemon = daemon();
    for arguments in [
        &["hit"][..],
        &["hit", "api", "user"],
        &["hit", "api", "user=u1", "--cost", "-1"],
        &["hit", "api", "user=u1", "--format", "xml"],
        &["hit", "api", "user=u1", "--timeout", "0s"],
        // Only the daemon detects these.
        &["hit", "a/b", "user=u1"],
        &["hit", "api", "bad:key=1"],
    ] {
        let output = run(&daemon.socket(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn allows_without_daemon_unless_on_failure_refuse() {
    let plan = Plan::new();
    let socket = plan.socket();
    let output = run(&socket, &["hit", "api", "user=u1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let printed = text(&output.stderr);
    assert!(
        printed.contains("allow, without an answer") && printed.contains("is the daemon running?"),
        "{printed}"
    );
    assert!(output.stdout.is_empty());
    let output = run(&socket, &["hit", "api", "user=u1", "--on-failure", "refuse"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(text(&output.stderr).contains("refuse, without an answer"), "{output:?}");
    let output = run(&socket, &["hit", "api", "user=u1", "--format", "json"]);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["verdict"], &printed["degraded"]), (&json!("allow"), &json!(true)));
    // A stale socket.
    drop(UnixListener::bind(&socket).unwrap());
    let output = run(&socket, &["hit", "api", "user=u1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).contains("start the daemon"), "{output:?}");
    // A file that is no socket.
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "").unwrap();
    let output = run(&socket, &["hit", "api", "user=u1"]);
    assert!(text(&output.stderr).contains("this is not a socket"), "{output:?}");
}

#[test]
fn names_the_admin_socket_that_was_taken_for_the_socket() {
    let daemon = daemon();
    let admin = daemon.socket().with_file_name("t.admin.sock");
    let output = run(&admin, &["hit", "api", "user=u1"]);
    assert!(text(&output.stderr).contains("this is the admin socket"), "{output:?}");
}

#[test]
fn waits_for_stopped_daemon_until_timeout() {
    let daemon = daemon();
    daemon.process.signal(libc::SIGSTOP);
    let output = run(&daemon.socket(), &["hit", "api", "user=u1", "--timeout", "50ms"]);
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).contains("does not answer in time"), "{output:?}");
}

/// Accepts one connection like a daemon that drains for an upgrade: it greets, reads no request, and is
/// replaced at its path by `next` before it sends GOODBYE.
fn exits_for(next: &Path, link: &Path) -> JoinHandle<()> {
    let listener = UnixListener::bind(link).unwrap();
    let (next, link) = (next.to_owned(), link.to_owned());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4_096]).unwrap() > 0, "HELLO");
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(next, link).unwrap();
        let info =
            json!({"server": "t", "boot": 1, "connection": 1, "frame_bytes_max": 16_384, "mode": "enforce"});
        let words = [json!([0, 0, 1, info]), json!([4, null, "draining"])];
        stream.write_all(&words.iter().flat_map(frame).collect::<Vec<u8>>()).unwrap();
    })
}

#[test]
fn resends_unread_request_to_next_daemon() {
    let daemon = daemon();
    let link = daemon.plan.path("leaving.sock");
    let questions: [&[&str]; 2] = [
        &["hit", "api", "user=u1", "--on-failure", "refuse"],
        &["acquire", "api", "user=u1", "--on-failure", "refuse", "--", "true"],
    ];
    for question in questions {
        let leaving = exits_for(&daemon.socket(), &link);
        let output = run(&link, question);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{output:?}");
        leaving.join().unwrap();
        fs::remove_file(&link).unwrap();
    }
    let peeked = run(&daemon.socket(), &["peek", "api", "user=u1"]);
    assert!(text(&peeked.stdout).contains("3 of 5 left"), "each was heard once: {peeked:?}");
}

#[test]
fn disable_variable_allows_without_request() {
    let daemon = daemon();
    let ask = |value: &str, arguments: &[&str]| {
        command(&daemon.socket(), arguments).env("TIDEGATE_DISABLE", value).output().unwrap()
    };
    for _ in 0..7 {
        let output = ask("1", &["hit", "api", "user=u1", "--on-failure", "refuse"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stderr).contains("TIDEGATE_DISABLE=1"), "{output:?}");
    }
    let output = ask("0", &["peek", "api", "user=u1"]);
    assert!(text(&output.stdout).contains("5 of 5 left"), "nothing was asked: {output:?}");
}

#[test]
fn error_reply_counts_as_failure() {
    // A panicking decision thread: the work continues, unless `--on-failure refuse`.
    let daemon = Plan::new().settings("connections: {max: 1}").start();
    let panicking = ["hit", "api", "user=u1", "debug-panic=1", "--on-failure"];
    let busy = ["hit", "api", "user=u1", "--on-failure"];
    let errors = [(panicking.as_slice(), "internal"), (busy.as_slice(), "busy")];
    // Only a debug build can be made to panic.
    for (arguments, word) in errors.into_iter().filter(|(_, word)| cfg!(debug_assertions) || *word == "busy")
    {
        let here = (word == "busy").then(|| greeted_at_last(&daemon));
        for (on_failure, code) in [("allow", 0), ("refuse", 69)] {
            let output = super::daemon::eventually("a place for the panicking one", || {
                let output = run(&daemon.socket(), &[arguments, &[on_failure]].concat());
                (word == "busy" || !text(&output.stderr).contains("busy")).then_some(output)
            });
            assert_eq!(output.status.code(), Some(code), "{arguments:?} {on_failure}: {output:?}");
            assert!(text(&output.stderr).contains(word), "{arguments:?}: {output:?}");
        }
        drop(here);
    }
}

#[test]
fn bench_peeks_by_default() {
    let daemon = daemon();
    let socket = daemon.socket();
    let answers = |arguments: &[&str]| {
        let load = ["bench", "api", "user=u1", "--time", "200ms", "--connections", "2", "--in-flight", "7"];
        let output = run(&socket, &[&load, arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed = text(&output.stdout).to_owned();
        assert!(
            ["2 connections × 7 in flight", "p50", "p99", "max"].iter().all(|word| printed.contains(word)),
            "{printed}"
        );
        printed.split_once(" answers").unwrap().0.replace(' ', "").parse::<u64>().unwrap()
    };
    assert!(answers(&[]) >= 14);
    let peeked = run(&socket, &["peek", "api", "user=u1"]);
    assert!(text(&peeked.stdout).starts_with("allow  per-user: 5 of 5 left"), "{peeked:?}");
    assert!(answers(&["--hit"]) >= 14);
    assert_eq!(run(&socket, &["hit", "api", "user=u1", "--cost", "5"]).status.code(), Some(75));
    assert_eq!(run(Path::new("/nowhere/there"), &["bench"]).status.code(), Some(1));
}
