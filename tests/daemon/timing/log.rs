//! A log that cannot be written affects only the log.

use super::machine::timed;
use super::tries;
use crate::prelude::*;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io::{PipeReader, pipe};
use std::os::fd::OwnedFd;

/// Kinds of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    /// A file, for comparison.
    File,
    /// A full disk.
    Full,
    /// A pipe whose reader has closed.
    Closed,
    /// A full pipe whose reader does not read.
    Blocked,
    /// No descriptor.
    Absent,
}

const UNWRITABLE: [Log; 4] = [Log::Full, Log::Closed, Log::Blocked, Log::Absent];

fn full_pipe() -> (PipeReader, OwnedFd) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'.'; 1]).is_ok() || writer.write(&[b'.'; 4_096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer.into())
}

/// Starts a daemon with such a log; returns the reader to keep its pipe open.
fn start(log: Log) -> (Daemon, Option<PipeReader>) {
    let mut plan = Plan::new().settings("log: {level: debug}");
    let mut reader = None;
    if log == Log::Absent {
        plan = plan.shell("exec 2>&-; exec \"$@\"");
    }
    let mut command = plan.command("log");
    let writer = match log {
        Log::File | Log::Absent => None,
        Log::Full => Some(File::options().write(true).open("/dev/full").unwrap().into()),
        Log::Closed => Some(pipe().unwrap().1.into()),
        Log::Blocked => {
            let (left, writer) = full_pipe();
            reader = Some(left);
            Some(writer)
        }
    };
    if let Some(writer) = writer {
        command.stderr(Stdio::from(writer));
    }
    let mut daemon = Daemon { process: Process::start(&mut command), plan };
    eventually("the daemon accepts", || {
        assert_eq!(daemon.process.has_ended(), None, "{log:?}");
        daemon.socket().exists().then_some(())
    });
    // Earlier signals would end the daemon.
    daemon.greeted().assert_served();
    (daemon, reader)
}

/// Causes every kind of log entry, and more lines than any buffer holds.
fn work(daemon: &Daemon) {
    let mut wire = daemon.greeted();
    assert_eq!(wire.allowed("u1", 7), 5, "it limits");
    let one = RULES.replace("burst: 5", "burst: 1");
    fs::write(daemon.plan.path("rules").join("api.yaml"), one).unwrap();
    daemon.process.signal(libc::SIGHUP);
    let mut user = 0;
    wait_until("the new rules are in force", || {
        user += 1;
        wire.allowed(&format!("v{user}"), 2) == 1
    });
    for _ in 0..200 {
        daemon.process.signal(libc::SIGUSR1);
        daemon.process.signal(libc::SIGHUP);
        assert!(daemon.greeted().is_served(), "it accepts and answers");
    }
    if cfg!(debug_assertions) {
        for id in 0..3 {
            let mut wire = daemon.greeted();
            wire.send(&json!([3, id, "api", [["user", "u1", "debug-panic", "1"]]]));
            assert_eq!(wire.hear_all().len(), 1, "a panic while judging is answered");
        }
    }
    daemon.greeted().assert_served();
}

fn stop(daemon: &mut Daemon) -> Duration {
    timed(|| {
        daemon.stop();
    })
    .1
}

#[test]
fn serves_and_stops_with_any_standard_error() {
    for _ in 0..tries(1) {
        let mut twin = start(Log::File).0;
        work(&twin);
        assert_eq!(metric(&twin, "tidegate_log_lines_dropped_total"), Some(0.0));
        let usual = stop(&mut twin);
        for log in UNWRITABLE {
            let (mut daemon, reader) = start(log);
            work(&daemon);
            if log == Log::Absent {
                // No other file becomes standard error.
                let error = fs::read_link(format!("/proc/{}/fd/2", daemon.process.id()));
                assert_eq!(error.unwrap(), Path::new("/dev/null"));
            }
            let dropped = metric(&daemon, "tidegate_log_lines_dropped_total").unwrap();
            let panics = if cfg!(debug_assertions) { 3.0 } else { 0.0 };
            match log {
                Log::Full | Log::Closed => assert!(dropped > 100.0, "{log:?}: {dropped}"),
                // Panics bypass the queue, which holds the other lines.
                Log::Blocked => assert!((dropped - panics).abs() < 0.5, "{dropped}"),
                _ => assert!(dropped.abs() < 0.5, "{dropped}"),
            }
            let took = stop(&mut daemon);
            assert!(took <= usual + Duration::from_millis(500), "{log:?}: {took:?}, with a file {usual:?}");
            drop(reader);
        }
    }
}

#[test]
fn reports_wrong_settings_or_ends_without_waiting_for_standard_error() {
    for log in UNWRITABLE {
        let plan = Plan::new().settings("nonsense: 1");
        let mut command = plan.command("log");
        let (reader, writer) = full_pipe();
        match log {
            Log::Blocked => command.stderr(Stdio::from(writer)),
            _ => command.stderr(Stdio::from(File::options().write(true).open("/dev/full").unwrap())),
        };
        assert_eq!(Process::start(&mut command).exit_code(), Some(1), "{log:?}");
        drop(reader);
    }
}
