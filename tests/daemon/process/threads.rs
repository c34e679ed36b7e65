//! Threads that cannot start or that panic: the daemon decides without them, and restarts them.

use crate::prelude::*;
use std::os::unix::fs::chown;

/// Users of this test alone, as RLIMIT_NPROC counts all threads of a user.
const FIRST_USER: u32 = 61_000;

/// Whether another user can run the daemon here.
fn may_limit() -> bool {
    let user = FIRST_USER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "prlimit", "--nproc=9"]);
    let may = command.args([BINARY, "--version"]).output().is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("left out: threads can only be limited by root, with setpriv and prlimit");
    }
    may
}

/// A plan of a daemon with at most `threads` threads, under one of this test's users.
fn limited(user: u32, threads: u32) -> Plan {
    let user = FIRST_USER + user;
    let script = format!(
        "exec setpriv --reuid={user} --regid={user} --clear-groups prlimit --nproc={threads}:64 \"$@\""
    );
    let plan = Plan::new().shell(script);
    for path in [plan.directory.path(), &plan.path("rules")] {
        chown(path, Some(user), Some(user)).unwrap();
    }
    plan
}

fn assert_limits(daemon: &Daemon) {
    assert_eq!(daemon.greeted().allowed("u1", 7), 5, "{}", daemon.log());
}

/// Replaces the directory of the rules by one with another burst, and waits until that is in force.
fn swap_rules(daemon: &Daemon, burst: u64) {
    let (rules, old) = (daemon.plan.path("rules"), daemon.plan.path(&format!("old-{burst}")));
    let next = daemon.plan.path("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("api.yaml"), RULES.replace("burst: 5", &format!("burst: {burst}"))).unwrap();
    fs::rename(&rules, old).unwrap();
    fs::rename(&next, &rules).unwrap();
    let mut user = 0;
    wait_until("the rules of the other directory hold", || {
        user += 1;
        daemon.greeted().allowed(&format!("swap-{burst}-{user}"), 20) == burst
    });
}

fn ends(mut daemon: Daemon) {
    daemon.stop();
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

fn threads_of(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/task", daemon.process.id())).unwrap().count()
}

fn set_limit(daemon: &Daemon, user: u32, threads: usize) {
    let user = (FIRST_USER + user).to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "prlimit", "--pid"]);
    command.arg(daemon.process.id().to_string()).arg(format!("--nproc={threads}:64"));
    assert!(command.status().unwrap().success());
}

#[test]
fn decides_with_as_many_threads_as_there_are() {
    needs!(may_limit());
    for threads in 1..=10 {
        let plan = limited(threads, threads).threads(2);
        if threads == 1 {
            // Too few for a decision thread.
            let (code, log) = plan.refused();
            assert_eq!(code, Some(1), "{log}");
            has(&log, &["cannot start a single decision thread", "help: "]);
            assert!(!log.contains("panicked"), "{log}");
            continue;
        }
        let daemon = plan.start();
        assert_limits(&daemon);
        if threads == 2 {
            daemon.await_log(&[
                "WARN",
                "fewer decision threads run than `threads` says",
                "threads=1",
                "wanted=2",
            ]);
        }
        let missing = daemon.log().matches("a thread cannot be started, so").count();
        assert_eq!(missing > 0, threads < 8, "{threads}: {}", daemon.log());
        if !daemon.log().contains("there is no admin socket") {
            let ready = get(&daemon, "/readyz");
            assert_eq!(ready.body.matches("cannot be started, so").count(), missing, "{}", ready.body);
            let running =
                |name: &str| metric(&daemon, &format!("tidegate_thread_running{{thread=\"{name}\"}}"));
            assert_eq!(running("rules"), Some(1.0));
            assert_eq!(running("log"), Some(if missing == 0 { 1.0 } else { 0.0 }));
        }
        if threads > 3 {
            swap_rules(&daemon, 2);
        }
        ends(daemon);
    }
}

#[test]
fn swaps_the_directory_of_rules_where_no_thread_can_be_had() {
    needs!(may_limit());
    let daemon = limited(20, 64).start();
    set_limit(&daemon, 20, threads_of(&daemon));
    for burst in [1, 2, 3] {
        swap_rules(&daemon, burst);
    }
    let refused = post(&daemon, "/reload", "{}");
    assert_eq!(
        (refused.status, refused.error().contains("no thread can be had")),
        (503, true),
        "{refused:?}"
    );
    ends(daemon);
}

#[test]
fn starts_what_was_missing_once_threads_can_be_had() {
    needs!(may_limit());
    let daemon = limited(21, 3).start();
    assert_limits(&daemon);
    daemon.await_log(&["WARN", "a thread cannot be started", "thread=\"sampler\""]);
    daemon.await_log(&["WARN", "a thread cannot be started", "thread=\"admin\""]);
    set_limit(&daemon, 21, 64);
    for thread in ["admin", "switches", "sampler", "log"] {
        daemon.await_log(&["INFO", "the thread could be started", &format!("thread=\"{thread}\"")]);
    }
    let ready =
        eventually("it is ready", || Some(get(&daemon, "/readyz")).filter(|ready| ready.status == 200));
    assert_eq!(ready.body, "ready\n");
    ends(daemon);
}

/// All threads of this daemon.
const THREADS: [&str; 9] =
    ["notify", "rules", "admin", "state", "switches", "sync", "sampler", "log", "http"];

#[test]
#[cfg(debug_assertions)]
fn runs_every_helper_thread_again_after_a_panic() {
    let settings = "state: state\nredis: {url: \"redis://127.0.0.1:1\", fleet_secret_files: [secret]}\n\
                    adapters: {http: {socket: http.sock}}";
    let plan = Plan::new().settings(settings);
    fs::create_dir(plan.path("state")).unwrap();
    fs::write(plan.path("secret"), "a secret of this test alone, and a long one at that\n").unwrap();
    let mut command = plan.command("log");
    command.env("TIDEGATE_DEBUG_PANIC", THREADS.join(","));
    // A service manager's socket, so that the notify thread runs.
    command.env("NOTIFY_SOCKET", plan.path("notify"));
    let mut daemon = plan.start_by(command, " serving ");
    assert_limits(&daemon);
    wait_until("the admin socket is there", || admin_socket(&daemon).exists());
    for thread in THREADS {
        let of = |name: &str| metric(&daemon, &format!("tidegate_{name}{{thread=\"{thread}\"}}"));
        wait_until(thread, || of("thread_running") == Some(1.0));
        assert_eq!(of("thread_restarts_total"), Some(1.0), "{thread}");
        daemon.await_log(&["ERROR", "a thread panicked, so", &format!("thread=\"{thread}\"")]);
    }
    // The log has at most eight lines of one place within ten seconds.
    wait_until("eight are there", || daemon.log().matches("ERROR panicked: asked to panic").count() == 8);
    // Each thread works again.
    eventually("HTTP is served", || UnixStream::connect(daemon.plan.path("http.sock")).ok());
    swap_rules(&daemon, 2);
    fs::write(daemon.plan.path("disable"), "").unwrap();
    daemon.await_log(&["EVERYTHING IS ALLOWED"]);
    daemon.stop();
    assert!(daemon.plan.path("state").join("tables").exists(), "{}", daemon.log());
    assert!(!Path::new(&admin_socket(&daemon)).exists());
}

#[test]
fn reads_no_password_without_a_thread_and_does_not_panic() {
    needs!(may_limit());
    // With one of these limits the sync thread is the last one that can start.
    for threads in 2..=10 {
        let plan = limited(20 + threads, threads);
        fs::write(plan.path("secret"), [7; 32]).unwrap();
        fs::write(plan.path("password"), "good").unwrap();
        let redis =
            "redis: {url: \"redis://127.0.0.1:1\", password_file: password, fleet_secret_files: [secret]}";
        let daemon = plan.settings(redis).start();
        let is_tried = |log: &str| log.contains("no connection to Redis") || log.contains("thread=\"sync\"");
        wait_until("Redis is tried", || is_tried(&daemon.log()));
        ends(daemon);
    }
}
