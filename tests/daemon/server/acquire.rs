//! `tidegate acquire`: runs a command under a lease.

use super::work::{daemon, free_permits};
use crate::prelude::*;

/// Runs a command under a lease of a login; returns its exit code and standard error.
fn login(daemon: &Daemon, work: &[&str]) -> (Option<i32>, String) {
    let output = daemon.command("acquire work login=mary --").args(work).output().unwrap();
    let (code, _, err) = outcome_of(&output);
    (code, err)
}

fn left(daemon: &Daemon) -> u64 {
    let peek = daemon.greeted().ask(&json!([4, 3, "work", [["login", "mary"]]]));
    peek[6].as_u64().unwrap()
}

fn start(daemon: &Daemon, arguments: &str, script: &str) -> Process {
    let mut command = daemon.command(&format!("acquire work {arguments} -- sh -c"));
    Process::start(command.arg(script).stdout(Stdio::null()).stderr(Stdio::null()))
}

const UNTIL_TERM: &str = "trap 'exit 7' TERM; while :; do sleep 0.02; done";

#[test]
fn exits_with_status_of_its_command() {
    let daemon = daemon();
    // This rule counts failures only.
    assert_eq!(login(&daemon, &["sh", "-c", "exit 3"]), (Some(3), String::new()));
    assert_eq!(left(&daemon), 1);
    assert_eq!(login(&daemon, &["true"]), (Some(0), String::new()));
    assert_eq!(left(&daemon), 1);
    assert_eq!(login(&daemon, &["sh", "-c", "kill -KILL $$"]), (Some(128 + 9), String::new()));
    assert_eq!(left(&daemon), 0);
    let proof = daemon.plan.path("proof");
    let (code, printed) = login(&daemon, &["touch", proof.to_str().unwrap()]);
    assert_eq!(code, Some(75));
    assert!(printed.starts_with("limit  failures: 0 of 2 left, try again in "), "{printed}");
    assert!(!proof.exists(), "what is refused is not run");
}

#[test]
fn renews_lease_and_forwards_signals() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    let mut is_held = || verdict_of(&watcher.ask(&json!([4, 1, "work", [["short", "yes"]]]))) == 1;
    let mut acquired = start(&daemon, "short=yes", UNTIL_TERM);
    wait_until("it holds its place", &mut is_held);
    // More than twice the expiry of a lease under this rule.
    for _ in 0..23 {
        sleep(Duration::from_millis(100));
        assert!(is_held());
    }
    acquired.signal(libc::SIGTERM);
    assert_eq!(acquired.exit_code(), Some(7), "the command had the signal and ended as it liked");
    assert!(!is_held(), "released before it ended");
}

#[test]
fn frees_lease_of_killed_acquire() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    // The child keeps the standard streams but not the connection.
    let acquired = start(&daemon, "user=u", "sleep 0.2");
    wait_until("it holds its place", || free_permits(&mut watcher, "u") == 1);
    acquired.signal(libc::SIGKILL);
    wait_until("its place is free", || free_permits(&mut watcher, "u") == 2);
}

#[test]
fn paced_command_waits_until_interrupted() {
    let rules = "domain: paced\nlimits:\n  - {name: some, match: {at: soon}, key: [], rate: 4/s, \
                 algorithm: leaky_bucket, queue: 1}\n";
    let plan = Plan::new().rules("paced.yaml", rules).rules("work.yaml", super::work::RULES);
    let daemon = plan.start();
    let begin = read_boot_nanos();
    for _ in 0..3 {
        daemon.run("acquire paced at=soon -- true");
    }
    assert!(read_boot_nanos() - begin >= 500_000_000, "two of three waited for their turn");
    let begin = read_boot_nanos();
    for _ in 0..3 {
        daemon.run("hit paced at=soon");
    }
    assert!(read_boot_nanos() - begin >= 500_000_000, "as `hit` does");
    // A signal ends the wait, which would take a minute.
    let mut watcher = daemon.greeted();
    daemon.run("acquire work job=mail -- true");
    let proof = daemon.plan.path("proof");
    let script = format!("touch {}", proof.display());
    let mut waiting = start(&daemon, "job=mail user=u", &script);
    wait_until("it holds its place", || free_permits(&mut watcher, "u") == 1);
    waiting.signal(libc::SIGINT);
    assert_eq!(waiting.exit_code(), Some(128 + 2));
    assert_eq!((free_permits(&mut watcher, "u"), proof.exists()), (2, false));
}

#[test]
fn runs_command_without_daemon_unless_refused() {
    let plan = Plan::new();
    let (socket, proof) = (plan.socket(), plan.path("proof"));
    for (option, expected, words) in
        [("--on-failure refuse", 69, "refuse, without an answer"), ("", 0, "allow, without an answer")]
    {
        let arguments = format!("acquire work user=u {option} -- touch {}", proof.display());
        let (code, _, err) = outcome_of(&command(&socket, &arguments).output().unwrap());
        assert_eq!((code, proof.exists()), (Some(expected), expected == 0), "{err}");
        has(&err, &[words]);
    }
    let mut disabled = command(&socket, "acquire work -- sh -c");
    let output = disabled.arg("exit 4").env("TIDEGATE_DISABLE", "1").output().unwrap();
    let (code, _, err) = outcome_of(&output);
    assert!(code == Some(4) && err.contains("TIDEGATE_DISABLE=1"), "{code:?} {err}");
}

#[test]
fn command_outlives_killed_daemon() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    let go = daemon.plan.path("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done; exit 5", go.display());
    let mut acquired = start(&daemon, "user=u", &script);
    wait_until("it holds its place", || free_permits(&mut watcher, "u") == 1);
    daemon.process.signal(libc::SIGKILL);
    // Longer than two renewals.
    sleep(Duration::from_millis(800));
    assert_eq!(acquired.has_ended(), None);
    fs::write(go, "").unwrap();
    assert_eq!(acquired.exit_code(), Some(5));
}

#[test]
fn exits_as_shell_when_command_cannot_run() {
    let daemon = daemon();
    for (work, code) in [("/nowhere/there", 127), ("/etc/passwd", 126)] {
        has(&daemon.fail(&format!("acquire work user=u -- {work}"), code), &[work]);
    }
    for wrong in [
        "work user=u",
        "work user=u --",
        "work user -- true",
        "a/b user=u -- true",
        "work --pool a:b -- true",
    ] {
        daemon.fail(&format!("acquire {wrong}"), 2);
    }
    assert_eq!(free_permits(&mut daemon.greeted(), "u"), 2);
}

#[test]
fn says_that_work_is_not_limited() {
    let daemon = daemon();
    for (request, said) in
        [("wrk login=mary", "NOT LIMITED: no domain"), ("work lgin=mary", "not limited: no rule limits it")]
    {
        let (code, _, err) = daemon.outcome(&format!("acquire {request} -- true"));
        assert!(code == Some(0) && err.contains(said), "{code:?} {err}");
    }
    assert_eq!(login(&daemon, &["true"]), (Some(0), String::new()));
}
