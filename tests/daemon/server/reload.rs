//! Rules that change while the daemon runs: all ways to write them, the preserved states, the log.

use crate::prelude::*;
use std::os::unix::fs::symlink;

/// The usual rules with another burst, which identifies the version.
fn version(burst: u32) -> String {
    RULES.replace("burst: 5", &format!("burst: {burst}"))
}

/// The limit of a new user; `None` if no rule matches.
fn limit(daemon: &Daemon) -> Option<u64> {
    daemon.greeted().ask(&hit(1, "somebody"))[4].as_u64()
}

#[track_caller]
fn await_limit(daemon: &Daemon, expected: Option<u64>) {
    wait_until(&format!("the limit is {expected:?}"), || limit(daemon) == expected);
}

fn remaining(reply: &Value) -> (u64, u64) {
    (verdict_of(reply), reply[6].as_u64().unwrap())
}

/// Replaces a file by rename, as editors do.
fn replace(path: &Path, text: &str) {
    let new = path.with_file_name(".new~");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn count(daemon: &Daemon, words: &str) -> usize {
    daemon.log().matches(words).count()
}

/// Half of a rules file may be valid, and has fewer limits.
#[test]
fn reads_no_file_that_its_writer_has_open() {
    let daemon = daemon();
    let file = daemon.plan.path("rules/api.yaml");
    // Changes are watched from now on: one before would be found by a look at the files.
    replace(&file, &version(7));
    await_limit(&daemon, Some(7));
    let text = version(10);
    let (first, rest) = text.split_at(text.find('\n').unwrap());
    let mut writer = fs::File::create(&file).unwrap();
    writer.write_all(first.as_bytes()).unwrap();
    // Longer than a pause of a writer that closes its file.
    for _ in 0..10 {
        sleep(Duration::from_millis(50));
        assert_eq!(limit(&daemon), Some(7));
    }
    // Another domain does not wait for it.
    let web = version(9).replace("domain: api", "domain: web");
    fs::write(daemon.plan.path("rules/web.yaml"), web).unwrap();
    daemon.await_log(&["web: new, 1 rule"]);
    writer.write_all(rest.as_bytes()).unwrap();
    assert_eq!(limit(&daemon), Some(7));
    assert!(!daemon.log().contains("still being written"), "{}", daemon.log());
    drop(writer);
    await_limit(&daemon, Some(10));
    assert!(!daemon.log().contains("removed"), "{}", daemon.log());
}

#[test]
fn applies_edits_and_keeps_counts() {
    let daemon = daemon();
    let file = daemon.plan.path("rules/api.yaml");
    let mut wire = daemon.greeted();
    for left in (0..5).rev() {
        assert_eq!(remaining(&wire.ask(&hit(1, "u"))), (0, left));
    }
    assert_eq!(remaining(&wire.ask(&hit(1, "u"))), (1, 0));
    // By rename, in place, by a link, by rename again.
    replace(&file, &version(10));
    daemon.await_log(&["INFO", "api/per-user: burst 5 → 10"]);
    await_limit(&daemon, Some(10));
    assert_eq!(
        remaining(&wire.ask(&hit(1, "u"))),
        (0, 4),
        "what was used of the old burst is used of the new one"
    );
    fs::write(&file, version(20)).unwrap();
    daemon.await_log(&["api/per-user: burst 10 → 20"]);
    let elsewhere = daemon.plan.path("rules/.elsewhere/api.yaml");
    fs::create_dir(elsewhere.parent().unwrap()).unwrap();
    fs::write(&elsewhere, version(30)).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(".elsewhere/api.yaml", &file).unwrap();
    await_limit(&daemon, Some(30));
    fs::write(&elsewhere, version(40)).unwrap();
    await_limit(&daemon, Some(40));
    replace(&elsewhere, &version(50));
    await_limit(&daemon, Some(50));
    assert_eq!(remaining(&wire.ask(&hit(1, "u"))), (0, 43));
    wire.assert_served();
}

/// The files are read after a second, whether the writer pauses or not.
#[test]
fn applies_edits_of_a_writer_that_does_not_pause() {
    let daemon = daemon();
    let file = daemon.plan.path("rules/api.yaml");
    for burst in 10.. {
        replace(&file, &version(burst));
        if limit(&daemon) != Some(5) {
            break;
        }
        assert!(burst < 400, "20 s of changes show no effect");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn applies_added_and_removed_files() {
    let daemon = daemon();
    let web = daemon.plan.path("rules/web.yaml");
    fs::write(&web, version(7).replace("domain: api", "domain: web")).unwrap();
    daemon.await_log(&["INFO", "web: new, 1 rule"]);
    daemon.await_log(&["read again and are in force", "domains=2", "rules=2"]);
    fs::remove_file(&web).unwrap();
    daemon.await_log(&["web: removed with its 1 rule: it has NO LIMITS now"]);
    fs::rename(daemon.plan.path("rules/api.yaml"), daemon.plan.path("rules/api.off")).unwrap();
    daemon.await_log(&["WARN", "no rule is in force: everything is allowed"]);
    await_limit(&daemon, None);
    fs::rename(daemon.plan.path("rules/api.off"), daemon.plan.path("rules/api.yaml")).unwrap();
    await_limit(&daemon, Some(5));
}

#[test]
fn keeps_old_limits_until_broken_file_is_fixed() {
    let daemon = Plan::new().rules("web.yaml", &version(7).replace("domain: api", "domain: web")).start();
    let file = daemon.plan.path("rules/api.yaml");
    replace(&file, &version(10).replace("1/h", "1/hr"));
    daemon.await_log(&["ERROR", "api.yaml:3:41: error: unknown unit `hr`"]);
    daemon.await_log(&["ERROR", "domain=api", "it keeps its last good rules"]);
    daemon.await_log(&["read again: 1 domain left out for errors", "domains=2", "rules=2"]);
    assert_eq!(limit(&daemon), Some(5));
    // Its domain cannot be read; another domain changes meanwhile.
    replace(&file, "\u{1}");
    daemon.await_log(&["api.yaml:1:1: error"]);
    fs::write(daemon.plan.path("rules/web.yaml"), version(8).replace("domain: api", "domain: web")).unwrap();
    daemon.await_log(&["web/per-user: burst 7 → 8"]);
    assert_eq!(limit(&daemon), Some(5));
    replace(&file, &version(20));
    daemon.await_log(&["api: its errors are fixed"]);
    daemon.await_log(&["api/per-user: burst 5 → 20"]);
    await_limit(&daemon, Some(20));
    // A file without a domain: no rules are replaced while it exists.
    fs::write(daemon.plan.path("rules/new.yaml"), "limits: []").unwrap();
    daemon.await_log(&["ERROR", "NOTHING IS CHANGED", "new.yaml"]);
    replace(&file, &version(30));
    wait_until("it was tried", || count(&daemon, "NOTHING IS CHANGED") == 2);
    assert_eq!(limit(&daemon), Some(20));
    fs::remove_file(daemon.plan.path("rules/new.yaml")).unwrap();
    await_limit(&daemon, Some(30));
    assert!(!daemon.log().contains("domain=api NO LIMITS"));
}

#[test]
fn logs_unchanged_rules_on_sighup_only() {
    let daemon = daemon();
    let file = daemon.plan.path("rules/api.yaml");
    fs::write(&file, RULES).unwrap();
    replace(&file, RULES);
    fs::write(daemon.plan.path("rules/.api.yaml.swp"), "x").unwrap();
    daemon.process.signal(libc::SIGHUP);
    daemon.await_log(&["INFO", "read again: nothing changed", "rules=1"]);
    replace(&file, &version(9));
    await_limit(&daemon, Some(9));
    wait_until("what changed is told", || count(&daemon, "read again") == 2);
    for requests in 2..10 {
        daemon.process.signal(libc::SIGHUP);
        wait_until("it is read again", || count(&daemon, "nothing changed") == requests);
    }
    daemon.greeted().assert_served();
}

/// Writes files like a mounted config map, and replaces the previous ones.
fn mount(rules: &Path, number: u32, text: &str) {
    let name = format!("..2024_{number}");
    fs::create_dir(rules.join(&name)).unwrap();
    fs::write(rules.join(&name).join("api.yaml"), text).unwrap();
    let old = fs::read_link(rules.join("..data"));
    symlink(&name, rules.join("..data_tmp")).unwrap();
    fs::rename(rules.join("..data_tmp"), rules.join("..data")).unwrap();
    match old {
        Ok(old) => fs::remove_dir_all(rules.join(old)).unwrap(),
        Err(_) => symlink("..data/api.yaml", rules.join("api.yaml")).unwrap(),
    }
}

#[test]
fn applies_swapped_config_map() {
    let plan = Plan::new();
    let rules = plan.path("rules");
    fs::remove_file(rules.join("api.yaml")).unwrap();
    mount(&rules, 1, RULES);
    let daemon = plan.start();
    assert_eq!(limit(&daemon), Some(5));
    for number in 2..6 {
        mount(&rules, number, &version(number * 10));
        await_limit(&daemon, Some(u64::from(number) * 10));
    }
    // The targets of links are watched too.
    fs::write(rules.join("..data/api.yaml"), version(99)).unwrap();
    await_limit(&daemon, Some(99));
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
}

#[test]
fn follows_replaced_and_removed_rules_directory() {
    let daemon = daemon();
    let [rules, away] = ["rules", "away"].map(|name| daemon.plan.path(name));
    let fill = |directory: &PathBuf, burst| {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("api.yaml"), version(burst)).unwrap();
    };
    for (lap, burst) in [(1, 10), (2, 20), (3, 30)] {
        fs::rename(&rules, &away).unwrap();
        wait_until("it is said", || count(&daemon, "rules cannot be read") == lap);
        assert!(limit(&daemon).is_some(), "the old rules stay");
        fs::remove_dir_all(&away).unwrap();
        fill(&rules, burst);
        await_limit(&daemon, Some(u64::from(burst)));
    }
    // No pause between the renames.
    fill(&daemon.plan.path("next"), 40);
    fs::rename(&rules, &away).unwrap();
    fs::rename(daemon.plan.path("next"), &rules).unwrap();
    await_limit(&daemon, Some(40));
    // Every file of the new directory is watched.
    replace(&rules.join("api.yaml"), &version(50));
    await_limit(&daemon, Some(50));
    // The same directory, away for a moment.
    fs::remove_dir_all(&away).unwrap();
    fs::rename(&rules, &away).unwrap();
    fs::rename(&away, &rules).unwrap();
    daemon.process.signal(libc::SIGHUP);
    daemon.await_log(&["nothing changed"]);
    replace(&rules.join("api.yaml"), &version(60));
    await_limit(&daemon, Some(60));
}

/// Runs the daemon without inotify, in a user namespace.
const WITHOUT_INOTIFY: &str = "exec unshare --user --map-root-user sh -c \
    'echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"' sh \"$@\"";

#[test]
fn polls_rules_without_inotify() {
    let probe = Command::new("sh").args(["-c", WITHOUT_INOTIFY, "sh", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("user namespaces cannot be made here: what happens without inotify is not tested");
        return;
    }
    let daemon = Plan::new().shell(WITHOUT_INOTIFY).start();
    let file = daemon.plan.path("rules/api.yaml");
    daemon.await_log(&["WARN", "looking for them every 2 s", "fs.inotify.max_user_instances"]);
    replace(&file, &version(10));
    await_limit(&daemon, Some(10));
    fs::write(&file, version(20)).unwrap();
    await_limit(&daemon, Some(20));
    fs::write(daemon.plan.path("rules/web.yaml"), version(7).replace("domain: api", "domain: web")).unwrap();
    daemon.await_log(&["web: new, 1 rule"]);
    daemon.process.signal(libc::SIGHUP);
    daemon.await_log(&["nothing changed"]);
    assert_eq!(count(&daemon, "every 2 s"), 1, "it is said once");
    Wire::greeted(&daemon.socket()).assert_served();
}
