//! Operators' overrides: commands, admin socket, `disable` file, state directory.

use crate::prelude::*;
use std::os::unix::fs::{PermissionsExt, symlink};

pub(crate) fn plan() -> Plan {
    Plan::new().with_state()
}

fn switches(daemon: &Daemon) -> Value {
    get(daemon, "/switches").json()
}

/// The verdict of a hit: 0 allow, 1 limit.
pub(crate) fn verdict(wire: &mut Wire, user: &str) -> u64 {
    wire.ask(&hit(7, user))[2].as_u64().unwrap()
}

/// A connection whose user has spent all tokens.
fn limited(daemon: &Daemon, user: &str) -> Wire {
    let mut wire = daemon.greeted();
    assert_eq!(wire.allowed(user, 6), 5);
    wire
}

#[test]
fn switch_command_applies_to_next_request() {
    let daemon = plan().start();
    let mut wire = limited(&daemon, "u1");
    let printed = daemon.run("switch per-user disabled --for 30m");
    assert!(
        printed.starts_with("api/per-user: disabled until 2") && printed.contains("its file says enforce"),
        "{printed}"
    );
    assert_eq!(verdict(&mut wire, "u1"), 0);
    let listed = daemon.run("switch");
    assert!(listed.starts_with("switched  api/per-user: disabled until 2"), "{listed}");
    let by = format!("by uid {}", rustix::process::geteuid().as_raw());
    has(&daemon.run("status"), &["\nswitched  api/per-user: disabled until 2"]);
    assert!(listed.contains(&by) && listed.contains("(without it: enforce)"), "{listed}");
    assert_eq!(daemon.run("switch api/per-user --clear"), "api/per-user: back to what its file says\n");
    assert_eq!(daemon.run("switch api/per-user --clear"), "api/per-user: was not switched\n");
    assert_eq!(verdict(&mut wire, "u1"), 1);
    let printed = daemon.run("switch --all shadow");
    assert_eq!(printed, "everything: shadow until it is cleared; the settings say enforce\n");
    assert_eq!(verdict(&mut wire, "u1"), 0);
    let mut late = daemon.connect();
    assert_eq!(late.ask(&hello())[3]["mode"], "shadow", "who comes now is told");
    has(&daemon.run("switch per-user enforce"), &["but the whole daemon is in shadow, so this is too"]);
    daemon.run("switch --all enforce");
    assert_eq!(verdict(&mut wire, "u1"), 1);
    // Each change is logged with its user.
    daemon.await_log(&["INFO", "switched api/per-user to disabled until 2", &by[3..]]);
    let changes = switches(&daemon)["changes"].as_array().unwrap().len();
    assert_eq!(changes, 5);
}

#[test]
fn rejects_impossible_switches_with_help() {
    let daemon = plan().start();
    let table = [
        ("switch per-usr shadow", 1, "nothing is called `per-usr`: did you mean `api/per-user`?"),
        ("switch per-user off", 2, "no mode `off`: write enforce, shadow or disabled"),
        ("switch per-user", 2, "write `switch RULE MODE`"),
        ("switch --for 5m", 2, "write `switch RULE MODE`"),
        ("switch per-user shadow --for 0s", 2, "write a number above 0"),
        ("switch per-user shadow --for 2y", 2, "--for takes at most 366 days"),
        ("switch per-user --clear --for 5m", 2, "cannot be used with '--for <TIME>'"),
        (
            "block per-user ip=x --for 5m",
            1,
            "its key is made of `user`, not of `ip`: write exactly user=VALUE",
        ),
        ("block per-user user=x", 2, "--for"),
        ("reset per-user", 1, "not of nothing"),
    ];
    for (arguments, code, expected) in table {
        let count = daemon.fail(arguments, code);
        assert!(count.contains(expected), "{arguments}: {count}");
    }
    let answer = post(&daemon, "/switch", "{\"rule\": \"per-user\", \"mode\": \"shadow\", \"until\": 5}");
    assert!(answer.status == 400 && answer.error().contains("unknown field `until`"), "{}", answer.body);
    assert!(daemon.run("switch").starts_with("nothing is switched"), "none of it changed anything");
}

#[test]
fn blocks_and_resets_key_without_logging_it() {
    let daemon = plan().start();
    let mut wire = daemon.greeted();
    let printed = daemon.run("block per-user user=canary-7431 --for 1h");
    assert!(printed.starts_with("api/per-user: this key is refused until 2"), "{printed}");
    let reply = wire.ask(&hit(1, "canary-7431"));
    let retry = reply[8].as_u64().unwrap();
    assert!(reply[2] == 1 && retry <= 3_600_000_000 && retry > 3_500_000_000, "{reply}");
    assert_eq!(verdict(&mut wire, "another"), 0);
    assert_eq!(daemon.run("unblock per-user user=canary-7431"), "api/per-user: this key is free\n");
    assert_eq!(daemon.run("unblock per-user user=canary-7431"), "api/per-user: this key was not blocked\n");
    drop(wire);
    let mut wire = limited(&daemon, "canary-7431");
    assert_eq!(
        daemon.run("reset per-user user=canary-7431"),
        "api/per-user: this key starts fresh; leases stay\n"
    );
    assert_eq!(wire.allowed("canary-7431", 5), 5);
    daemon.run("block per-user user=canary-7431 --for 1h");
    let kept = fs::read_to_string(daemon.plan.path("state/switches")).unwrap();
    for (origin, text) in [("log", daemon.log()), ("file", kept), ("page", switches(&daemon).to_string())] {
        assert!(!text.contains("canary"), "the {origin} names the key: {text}");
    }
    daemon.await_log(&["blocked the key ", " of api/per-user until 2"]);
}

#[test]
fn operators_name_long_values_as_clients_send_them() {
    let daemon = plan().start();
    let (long, sent) = ("v".repeat(1_500), format!("{}~b0dcafc82b5c35841cdc48b7bb950eb4", "v".repeat(960)));
    let mut wire = limited(&daemon, &sent);
    assert_eq!(daemon.json(&format!("why api user={long}"))["verdict"], "limit");
    daemon.run(&format!("reset per-user user={long}"));
    assert_eq!(wire.allowed(&sent, 5), 5);
    daemon.run(&format!("reset per-user user={long}"));
    let block = json!({"rule": "per-user", "key": [["user", &long]], "for_s": 60}).to_string();
    assert_eq!(post(&daemon, "/block", &block).status, 200);
    assert_eq!(verdict(&mut wire, &sent), 1);
    let (code, printed, _) = daemon.outcome(&format!("hit api user={long}"));
    assert!(code == Some(75) && printed.starts_with("limit"), "{code:?} {printed}");
}

#[test]
fn doctor_says_how_to_end_what_disables_everything() {
    let daemon = plan().start();
    let wrong = || {
        let (code, report, _) = outcome_of(&daemon.doctor(&[]));
        (code == Some(1)).then_some(report)
    };
    daemon.run("switch --all disabled");
    let report = wrong().unwrap();
    assert!(report.contains("WRONG  mode: everything is switched to disabled on this host"), "{report}");
    assert!(report.contains("help: tidegate switch --all --clear\n"), "{report}");
    daemon.run("switch --all --clear");
    let file = daemon.plan.path("disable");
    fs::write(&file, "").unwrap();
    let report = eventually("the file counts", || wrong().filter(|report| report.contains("EVERYTHING")));
    assert!(report.contains(&format!("help: rm {}\n", file.display())), "{report}");
    assert_eq!(report.matches("EVERYTHING").count(), 1, "{report}");
    assert!(daemon.run("switch").contains(&format!("the file {} is there", file.display())));
}

#[test]
fn disable_file_allows_all_while_present() {
    let daemon = Plan::new().start();
    let mut wire = limited(&daemon, "u1");
    let file = daemon.plan.path("disable");
    let mut is = |expected: u64| {
        wait_until("the file is seen", || verdict(&mut wire, "u1") == expected);
    };
    fs::write(&file, "").unwrap();
    is(0);
    daemon.await_log(&["WARN", "EVERYTHING IS ALLOWED as long as this file is there", "disable"]);
    assert!(daemon.run("switch").starts_with("EVERYTHING IS ALLOWED"));
    fs::remove_file(&file).unwrap();
    is(1);
    // The daemon ignores links.
    symlink(daemon.plan.path("tidegate.yaml"), &file).unwrap();
    daemon.await_log(&["this file switches nothing off", "no regular file"]);
    is(1);
    fs::remove_file(&file).unwrap();
    // It ignores files that have another name, too: in a directory of another user's, a link may be to any file.
    let other = daemon.plan.path("other");
    fs::write(&other, "").unwrap();
    fs::hard_link(&other, &file).unwrap();
    daemon.await_log(&["this file switches nothing off", "a second name"]);
    is(1);
    fs::remove_file(&other).unwrap();
    is(0);
    fs::remove_file(&file).unwrap();
    is(1);
    // And its own lock, which a user that may write the directory can rename.
    fs::rename(daemon.plan.path("t.sock.lock"), &file).unwrap();
    daemon.await_log(&["this file switches nothing off", "the lock of a socket"]);
    is(1);
    fs::remove_file(&file).unwrap();
    if is_root() {
        fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(OTHER), Some(OTHER)).unwrap();
        // The daemon may read in between; only the final state counts.
        daemon.await_log(&["this file switches nothing off", "belongs neither to root"]);
        is(1);
        std::os::unix::fs::chown(&file, Some(0), Some(0)).unwrap();
        is(0);
        let count = daemon.log().matches("belongs neither to root").count();
        assert_eq!(count, 1, "once");
    } else {
        println!("not root: whose file it is was not tried");
    }
}

#[test]
fn disable_file_at_start_allows_first_request() {
    let plan = Plan::new();
    fs::write(plan.path("disable"), "").unwrap();
    let daemon = plan.start();
    assert_eq!(daemon.greeted().allowed("u1", 10), 10);
}

/// Ends a daemon with this signal and starts the next one in the same directory.
pub(crate) fn restart(mut daemon: Daemon, signal: i32) -> Daemon {
    daemon.process.signal(signal);
    daemon.process.exit_code();
    daemon.plan.start()
}

#[test]
fn keeps_switches_across_restart_and_kill() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let daemon = plan().start();
        daemon.run("switch per-user disabled --for 1h");
        daemon.run("switch --all shadow");
        daemon.run("block per-user user=u2 --for 1h");
        let daemon = restart(daemon, signal);
        let listed = daemon.run("switch");
        has(&listed, &["api/per-user: disabled until 2", "everything: shadow,"]);
        daemon.await_log(&["still switched: api/per-user is disabled"]);
        daemon.run("switch --all --clear");
        assert_eq!(daemon.greeted().allowed("u1", 10), 10);
        daemon.run("switch per-user --clear");
        let daemon = restart(daemon, signal);
        let mut wire = limited(&daemon, "u1");
        assert_eq!(verdict(&mut wire, "u2"), 1, "blocked by hand before the daemon ended twice");
        daemon.run("unblock per-user user=u2");
        let daemon = restart(daemon, signal);
        assert_eq!(verdict(&mut daemon.greeted(), "u2"), 0);
    }
}

#[test]
fn warns_of_state_directory_that_every_user_may_write() {
    let plan = plan();
    fs::set_permissions(plan.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    let daemon = plan.start();
    daemon.await_log(&["WARN", "every user may replace the files of the state directory", "mode=\"0777\""]);
    fs::set_permissions(daemon.plan.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = restart(daemon, libc::SIGTERM);
    assert!(!daemon.log().contains("every user may replace"), "{}", daemon.log());
}

#[test]
fn warns_of_switches_that_would_be_lost() {
    for settings in ["", "state: nowhere"] {
        let daemon = Plan::new().settings(settings).start();
        let (code, _, warned) = daemon.outcome("switch per-user disabled");
        let help = if settings.is_empty() { "set `state`" } else { "nowhere" };
        has(&warned, &["not on disk: lost when the daemon ends", help]);
        assert_eq!((code, daemon.greeted().allowed("u1", 10)), (Some(0), 10));
        if !settings.is_empty() {
            daemon.await_log(&["ERROR", "switches and blocks cannot be stored", "nowhere"]);
            // The daemon stores the switch as soon as it can.
            fs::create_dir(daemon.plan.path("nowhere")).unwrap();
            wait_until("it is kept", || daemon.plan.path("nowhere/switches").exists());
        }
    }
}

#[test]
fn warns_that_stored_switches_return_if_the_change_is_not_stored() {
    let daemon = plan().start();
    daemon.run("switch per-user disabled");
    let file = daemon.plan.path("state/switches");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let (_, _, warned) = daemon.outcome("switch per-user --clear");
    has(&warned, &["lost when the daemon ends, and the switches and blocks stored before return: "]);
}

#[test]
fn logs_alarm_and_switches_guarded_rule_to_shadow() {
    let daemon = plan().start();
    let rule =
        "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/h, burst: 1, guard: shadow}\n";
    fs::write(daemon.plan.path("rules").join("api.yaml"), rule).unwrap();
    daemon.await_log(&["the rules were read again and are in force"]);
    let mut wire = daemon.greeted();
    for user in 0..120 {
        (0..2).for_each(|_| assert!(verdict(&mut wire, &format!("u{user}")) <= 1));
    }
    let line = daemon.await_log(&["ERROR", "api/per-user REFUSES MOST CALLERS since it changed"]);
    assert!(line.contains("120 of 120") && line.contains("it is in shadow for 10 minutes"), "{line}");
    assert_eq!(verdict(&mut wire, "u1"), 0, "in shadow");
    let found = switches(&daemon);
    assert!(found["warnings"][0].as_str().unwrap().contains("REFUSES MOST CALLERS"), "{found}");
    assert_eq!(json!([found["switches"][0]["by"], found["switches"][0]["mode"]]), json!(["guard", "shadow"]));
    eventually("it is kept", || {
        fs::read_to_string(daemon.plan.path("state/switches")).ok()?.contains("per-user").then_some(())
    });
}

/// The uid of an unprivileged user.
const OTHER: u32 = 65_534;
