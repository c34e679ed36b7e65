//! `tidegate hit`, `tidegate peek` and `tidegate bench` in a shell.

use super::caps::greeted_at_last;
use crate::prelude::*;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

/// The exit code, standard output and standard error of a command.
fn outcome(socket: &Path, arguments: &str) -> (Option<i32>, String, String) {
    outcome_of(&command(socket, arguments).output().unwrap())
}

#[test]
fn exit_code_stands_when_output_cannot_be_written() {
    let daemon = daemon();
    let (closed, _) = UnixStream::pair().unwrap();
    closed.shutdown(std::net::Shutdown::Write).unwrap();
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || Stdio::from(std::os::fd::OwnedFd::from(closed.try_clone().unwrap()));
    for (arguments, code_if_full, code_if_closed) in [
        ("hit api user=u1", 0, 0),
        ("hit api user=u1 --cost 6", 75, 75),
        ("acquire api user=u1 --cost 6 -- true", 75, 75),
        ("check /nonexistent", 1, 1),
        // The reader of a pipe may read a part and close it.
        ("gen completions bash", 1, 0),
    ] {
        let mut command = daemon.command(arguments);
        let status = command.stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code_if_full), "full: {arguments}");
        let status = command.stdout(closed()).stderr(closed()).status().unwrap();
        assert_eq!(status.code(), Some(code_if_closed), "closed: {arguments}");
    }
}

#[test]
fn hit_exits_with_0_until_limit_then_75() {
    let daemon = daemon();
    for left in (0..5).rev() {
        let (code, out, err) = daemon.outcome("hit api user=u1 method=POST");
        assert_eq!((code, &*err), (Some(0), ""), "{out}");
        assert!(out.starts_with(&format!("allow  per-user: {left} of 5 left")), "{out}");
    }
    let (code, out, _) = daemon.outcome("hit api user=u1");
    assert_eq!(code, Some(75), "{out}");
    assert!(out.starts_with("limit  per-user: 0 of 5 left, try again in "), "{out}");
    assert!(out.contains("\nhelp   https://example.com/limits\n"), "{out}");
    let (code, out, _) = daemon.outcome("hit api user=u2 --cost 6");
    assert!(code == Some(75) && out.contains("never"), "{code:?} {out}");
}

#[test]
fn peek_charges_nothing_and_prints_json() {
    let daemon = daemon();
    for _ in 0..7 {
        let peeked = daemon.json("peek api user=u1 --all");
        let fields = ["verdict", "rule", "remaining", "degraded"].map(|name| &peeked[name]);
        assert_eq!(json!(fields), json!(["allow", "per-user", 5, false]));
        assert_eq!(peeked["all"][0][0], "per-user");
    }
    let out = daemon.run("peek api user=u1 --all");
    assert!(out.ends_with("rule   per-user: 5 of 5 left, full\n"), "{out}");
    let out = daemon.run("peek api user=u1 --cost tokens=9");
    assert!(out.starts_with("allow  not limited"), "no rule counts tokens: {out}");
    daemon.run("hit api user=u1 --cost 5");
    daemon.fail("peek api user=u1", 75);
}

#[test]
fn exits_with_2_on_bad_arguments() {
    let daemon = daemon();
    for verb in ["hit", "peek", "explain", "why"] {
        let err = daemon.fail(&format!("{verb} api user=u1 --cost 5 --cost requests=3"), 2);
        assert!(err.contains("--cost is given twice in requests"), "{verb}: {err}");
    }
    for arguments in [
        "hit",
        "hit api user",
        "hit api user=u1 --cost -1",
        "hit api user=u1 --format xml",
        "hit api user=u1 --timeout 0s",
        // Only the daemon detects these.
        "hit a/b user=u1",
        "hit api bad:key=1",
    ] {
        let (code, out, err) = daemon.outcome(arguments);
        assert!(code == Some(2) && out.is_empty() && !err.is_empty(), "{arguments}: {code:?} {out}{err}");
    }
}

#[test]
fn allows_without_daemon_unless_on_failure_refuse() {
    let plan = Plan::new();
    let socket = plan.socket();
    let (code, out, err) = outcome(&socket, "hit api user=u1");
    assert_eq!((code, &*out), (Some(0), ""), "{err}");
    has(&err, &["allow, without an answer", "is the daemon running?"]);
    let (code, _, err) = outcome(&socket, "hit api user=u1 --on-failure refuse");
    assert!(code == Some(69) && err.contains("refuse, without an answer"), "{code:?} {err}");
    let (_, out, _) = outcome(&socket, "hit api user=u1 --format json");
    let printed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json!([printed["verdict"], printed["degraded"]]), json!(["allow", true]));
    // A stale socket.
    drop(UnixListener::bind(&socket).unwrap());
    let (code, _, err) = outcome(&socket, "hit api user=u1");
    assert!(code == Some(0) && err.contains("start the daemon"), "{code:?} {err}");
    // A file that is no socket.
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    has(&outcome(&socket, "hit api user=u1").2, &["this is not a socket"]);
}

#[test]
fn names_a_daemon_that_is_stopped_and_an_admin_socket() {
    let daemon = daemon();
    daemon.process.signal(libc::SIGSTOP);
    let (code, _, err) = daemon.outcome("hit api user=u1 --timeout 50ms");
    daemon.process.signal(libc::SIGCONT);
    assert!(code == Some(0) && err.contains("does not answer in time"), "{code:?} {err}");
    let admin = daemon.socket().with_file_name("t.admin.sock");
    has(&outcome(&admin, "hit api user=u1").2, &["this is the admin socket"]);
}

/// Accepts one connection like a daemon that drains for an upgrade: it greets, reads no request, and is
/// replaced at its path by `next` before it sends GOODBYE.
fn exits_for(next: &Path, link: &Path) -> JoinHandle<()> {
    let listener = UnixListener::bind(link).unwrap();
    let (next, link) = (next.to_owned(), link.to_owned());
    thread::spawn(move || {
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
    for question in ["hit api user=u1 --on-failure refuse", "acquire api user=u1 --on-failure refuse -- true"]
    {
        let leaving = exits_for(&daemon.socket(), &link);
        let (code, _, err) = outcome(&link, question);
        assert_eq!((code, &*err), (Some(0), ""), "{question}");
        leaving.join().unwrap();
        fs::remove_file(&link).unwrap();
    }
    assert!(daemon.run("peek api user=u1").contains("3 of 5 left"), "each was heard once");
}

#[test]
fn disable_variable_allows_without_request() {
    let daemon = daemon();
    let ask = |value: &str, arguments: &str| {
        outcome_of(&daemon.command(arguments).env("TIDEGATE_DISABLE", value).output().unwrap())
    };
    for _ in 0..7 {
        let (code, _, err) = ask("1", "hit api user=u1 --on-failure refuse");
        assert!(code == Some(0) && err.contains("TIDEGATE_DISABLE=1"), "{code:?} {err}");
    }
    let (_, out, _) = ask("0", "peek api user=u1");
    assert!(out.contains("5 of 5 left"), "nothing was asked: {out}");
}

#[test]
fn error_reply_counts_as_failure() {
    // A panicking decision thread: the work continues, unless `--on-failure refuse`.
    let daemon = Plan::new().settings("connections: {max: 1}").start();
    // Only a debug build can be made to panic.
    let panicking = cfg!(debug_assertions).then_some(("debug-panic=1", "internal"));
    for (attribute, word) in panicking.into_iter().chain([("", "busy")]) {
        let here = (word == "busy").then(|| greeted_at_last(&daemon));
        for (on_failure, expected) in [("allow", 0), ("refuse", 69)] {
            let (code, _, err) = eventually("a place for the panicking one", || {
                let outcome =
                    daemon.outcome(&format!("hit api user=u1 {attribute} --on-failure {on_failure}"));
                (word == "busy" || !outcome.2.contains("busy")).then_some(outcome)
            });
            assert!(code == Some(expected) && err.contains(word), "{word} {on_failure}: {code:?} {err}");
        }
        drop(here);
    }
}

#[test]
fn bench_peeks_by_default() {
    let daemon = daemon();
    let answers = |arguments: &str| {
        let load = "bench api user=u1 --time 200ms --connections 2 --in-flight 7";
        let printed = daemon.run(&format!("{load} {arguments}"));
        has(&printed, &["2 connections × 7 in flight", "p50", "p99", "max"]);
        printed.split_once(" answers").unwrap().0.replace(' ', "").parse::<u64>().unwrap()
    };
    assert!(answers("") >= 14);
    let peeked = daemon.run("peek api user=u1");
    assert!(peeked.starts_with("allow  per-user: 5 of 5 left"), "{peeked}");
    assert!(answers("--hit") >= 14);
    daemon.fail("hit api user=u1 --cost 5", 75);
    assert_eq!(outcome(Path::new("/nowhere/there"), "bench").0, Some(1));
}
