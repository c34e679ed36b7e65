//! Faults of the state directory: the daemon serves, logs each once, and recovers.

use super::restarts::{end, plan, state};
use crate::prelude::*;
use std::os::unix::fs::{MetadataExt, chown, symlink};

/// Asserts that the daemon serves and logs one line with these words.
fn serves_and_logs(plan: Plan, words: &[&str]) -> Plan {
    let daemon = plan.start();
    assert_eq!(daemon.greeted().allowed("u", 6), 5);
    daemon.await_log(words);
    let (plan, log) = end(daemon);
    let count = log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(count, 1, "{log}");
    plan
}

#[test]
fn sets_damaged_tables_aside_and_keeps_one_copy() {
    let mut plan = plan();
    for damage in ["first", "second"] {
        fs::write(state(&plan).join("tables"), damage).unwrap();
        plan =
            serves_and_logs(plan, &["ERROR", "cannot be used: it is not a tidegate snapshot", "begin anew"]);
        assert_eq!(fs::read(state(&plan).join("tables.bad")).unwrap(), damage.as_bytes());
    }
    fs::write(state(&plan).join("hash-key"), [1; 16]).unwrap();
    let plan = serves_and_logs(plan, &["ERROR", "another hash key"]);
    fs::remove_file(state(&plan).join("hash-key")).unwrap();
    serves_and_logs(plan, &["ERROR", "another hash key"]);
}

#[test]
fn keeps_quotas_over_a_restart_after_the_directory_was_emptied() {
    let daemon = plan().writes_state_every(15).start();
    assert_eq!(daemon.greeted().allowed("u", 6), 5);
    daemon.run("switch per-user disabled");
    let directory = state(&daemon.plan);
    wait_until("all is written", || ["tables", "switches"].iter().all(|file| directory.join(file).exists()));
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() != "lock" {
            // A temporary file may be renamed in between.
            let _ = fs::remove_file(path);
        }
    }
    wait_until("the switches are written again", || directory.join("switches").exists());
    let daemon = daemon.stopped().start();
    assert_eq!(daemon.greeted().allowed("u", 6), 6, "still switched off: {}", daemon.log());
    daemon.run("switch per-user --clear");
    assert_eq!(daemon.greeted().allowed("u", 6), 0, "{}", daemon.log());
}

/// Its checksums have no secret: another user may write such files.
#[test]
fn uses_no_file_of_another_user() {
    needs!(is_root());
    for file in ["hash-key", "tables", "rules", "switches"] {
        let daemon = plan().start();
        daemon.greeted().allowed("u", 3);
        daemon.run("switch per-user disabled");
        let rules = state(&daemon.plan).join("rules");
        wait_until("the rules are kept", || rules.exists());
        let mut plan = daemon.stopped();
        let path = state(&plan).join(file);
        let before = fs::read(&path).unwrap();
        chown(&path, Some(4711), None).unwrap();
        if file == "rules" {
            plan = plan.rules("api.yaml", "domain: api\nlimits: 5\n");
        }
        let daemon = plan.start();
        let path = path.display().to_string();
        daemon.await_log(&["WARN", &path, "owner=4711", "the user 4711 may change it; help: "]);
        // The switch holds, or the domain has no limits.
        let expected = if file == "switches" { 2 } else { 6 };
        assert_eq!(daemon.greeted().allowed("u", 6), expected, "{file}: {}", daemon.log());
        if file == "rules" {
            daemon.await_log(&["ERROR", "domain=api", "NO LIMITS"]);
        }
        let plan = daemon.stopped();
        let owner = fs::metadata(state(&plan).join(file)).map(|found| found.uid());
        assert!(owner.is_err() || owner.is_ok_and(|owner| owner == 0), "{file} is replaced");
        assert!(file != "hash-key" || fs::read(state(&plan).join(file)).unwrap() != before);
    }
}

#[test]
fn warns_of_missing_directory_until_created() {
    let plan = plan().writes_state_every(15);
    fs::remove_dir(state(&plan)).unwrap();
    let daemon = plan.start();
    assert_eq!(daemon.greeted().allowed("u", 6), 5);
    daemon.await_log(&["WARN", "cannot be written", "No such file or directory; will retry"]);
    fs::create_dir(state(&daemon.plan)).unwrap();
    daemon.await_log(&["can be written again"]);
    for name in ["write_failures_total", "writes_total", "bytes", "last_write_timestamp_seconds"] {
        assert!(metric(&daemon, &format!("tidegate_state_{name}")) > Some(0.0), "{name}");
    }
    let daemon = daemon.stopped().start();
    assert_eq!(daemon.greeted().allowed("u", 6), 0);
    assert_eq!(metric(&daemon, "tidegate_state_write_failures_total"), Some(0.0));
    // Moved while the daemon runs.
    fs::rename(state(&daemon.plan), daemon.plan.path("elsewhere")).unwrap();
    daemon.await_log(&["WARN", "cannot be written"]);
    assert_eq!(daemon.greeted().allowed("other", 6), 5);
    end(daemon);
}

#[test]
fn follows_no_link_to_its_lock() {
    let plan = plan().writes_state_every(15);
    fs::write(plan.path("elsewhere"), "").unwrap();
    symlink(plan.path("elsewhere"), state(&plan).join("lock")).unwrap();
    serves_and_logs(plan, &["WARN", "cannot be written"]);
}

#[test]
fn second_daemon_runs_without_shared_state_directory() {
    let first = plan().start();
    let mut second = Plan::new().writes_state_every(15);
    second.settings = format!("state: {}", state(&first.plan).display());
    let second = second.start();
    second.await_log(&["WARN", "another tidegate uses this directory"]);
    assert_eq!(second.greeted().allowed("u", 6), 5);
    end(second);
    assert!(!state(&first.plan).join("tables").exists(), "it is the other's to write");
    assert_eq!(first.greeted().allowed("u", 3), 3);
    let first = first.stopped().start();
    assert_eq!(first.greeted().allowed("u", 3), 2);
}

#[test]
fn ends_on_sigterm_that_its_parent_blocked() {
    let mut daemon = plan().shell("exec env --block-signal=TERM \"$@\"").start();
    daemon.process.signal(libc::SIGTERM);
    assert_eq!(daemon.process.exit_code(), Some(0));
}

#[test]
fn signals_during_a_start_do_not_end_it() {
    let first = plan().start();
    let mut second = Plan::new();
    second.settings = format!("state: {}", state(&first.plan).display());
    // It waits for the directory meanwhile.
    let process = Process::start(&mut second.command("log"));
    let starting = Daemon { process, plan: second };
    wait_until("it begins", || starting.socket().exists());
    assert!(!starting.log().contains("another tidegate uses this directory"), "it waits no more");
    for signal in [libc::SIGHUP, libc::SIGUSR1] {
        starting.process.signal(signal);
    }
    starting.await_log(&["INFO", "serving"]);
    starting.process.signal(libc::SIGHUP);
    starting.await_log(&["INFO", "read again: nothing changed"]);
}

/// Whether a command may be run here; else prints that the test is skipped.
pub(crate) fn may(command: &str, arguments: &[&str]) -> bool {
    let ran = Command::new(command).args(arguments).arg("true").output();
    let may = ran.as_ref().is_ok_and(|ran| ran.status.success());
    if !may {
        eprintln!("SKIPPED: `{command} {}` is not permitted here: {ran:?}", arguments.join(" "));
    }
    may
}

#[test]
fn keeps_levels_across_time_namespaces() {
    needs!(may("unshare", &["--time", "--boottime", "3600", "--fork"]));
    // The bucket of five refills in five hours: an error of an hour would show.
    let daemon = plan().start();
    assert_eq!(daemon.greeted().allowed("u", 5), 5);
    let mut plan = daemon.stopped().shell("exec unshare --time --boottime 7200 \"$@\"");
    for _ in 0..2 {
        let daemon = plan.start();
        assert_eq!(daemon.greeted().allowed("u", 5), 0, "no time has passed");
        daemon.await_log(&["restored the state"]);
        plan = daemon.stopped();
        // Return to the clock that is two hours behind.
        plan.shell = None;
    }
}

#[test]
fn logs_full_disk_once_and_retries() {
    needs!(may("unshare", &["--mount"]));
    let plan = plan().writes_state_every(15);
    let mount = format!(
        "exec unshare --mount sh -c 'mount -t tmpfs -o size=256k none {0} && dd if=/dev/zero of={0}/filler bs=4096 \
         count=63 2>/dev/null && exec \"$@\"' sh \"$@\"",
        state(&plan).display()
    );
    let plan = plan.shell(mount);
    let daemon = plan.start();
    let mut wire = daemon.greeted();
    for user in 0..2_000 {
        assert_eq!(wire.allowed(&format!("u{user}"), 1), 1);
    }
    daemon.await_log(&["WARN", "cannot be written", "No space left"]);
    let inside = |name: &str| {
        let pid = daemon.process.id();
        PathBuf::from(format!("/proc/{pid}/root{}/{name}", state(&daemon.plan).display()))
    };
    // The partial file is removed, and the previous one, if any, stays.
    wait_until("nothing is left of it", || !inside("tables.new").exists());
    fs::remove_file(inside("filler")).unwrap();
    daemon.await_log(&["can be written again"]);
    assert!(inside("tables").exists());
    assert_eq!(wire.allowed("another", 6), 5);
    let count = daemon.log().matches("cannot be written").count();
    assert_eq!(count, 1, "{}", daemon.log());
    daemon.killed();
}

#[test]
fn survives_file_size_limit() {
    // In blocks of 512 bytes: enough for the log.
    let daemon = plan().writes_state_every(15).shell("ulimit -f 64; exec \"$@\"").start();
    let mut wire = daemon.greeted();
    for user in 0..2_000 {
        assert_eq!(wire.allowed(&format!("u{user}"), 1), 1);
    }
    daemon.await_log(&["WARN", "cannot be written", "File too large"]);
    assert_eq!(wire.allowed("another", 6), 5);
    let plan = daemon.stopped();
    assert!(!state(&plan).join("tables.new").exists());
}

#[test]
fn restores_from_read_only_directory() {
    needs!(may("unshare", &["--mount"]));
    let daemon = plan().start();
    assert_eq!(daemon.greeted().allowed("u", 3), 3);
    let plan = daemon.stopped().writes_state_every(15);
    let tables = fs::read(state(&plan).join("tables")).unwrap();
    let mount = format!(
        "exec unshare --mount sh -c 'mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec \"$@\"' sh \"$@\"",
        state(&plan).display()
    );
    let daemon = plan.shell(mount).start();
    assert_eq!(daemon.greeted().allowed("u", 6), 2);
    daemon.await_log(&["WARN", "cannot be written", "Read-only"]);
    let plan = daemon.stopped();
    assert_eq!(fs::read(state(&plan).join("tables")).unwrap(), tables);
}
