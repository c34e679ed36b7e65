//! Operators' overrides of another version.

use std::fs;

use super::commands::{plan, restart, verdict};
use super::daemon::Daemon;
use super::kept::document;

#[test]
fn keeps_switches_of_another_version() {
    let daemon = plan().start();
    daemon.run("switch per-user disabled");
    let Daemon { process, plan } = daemon;
    drop(process);
    // A later version, with an unknown field.
    let path = plan.path("state/switches");
    let ours = fs::read_to_string(&path).unwrap();
    let content = ours.split_once("\"orders\":").unwrap().1.strip_suffix('}').unwrap();
    let later = content.replace("\"switches\":[", "\"quotas\":[7],\"switches\":[");
    let later = document(2, &later);
    fs::write(&path, &later).unwrap();
    let daemon = plan.start();
    daemon.await_log(&["INFO", "another version of tidegate", "version=2"]);
    daemon.await_log(&["ERROR", "does not know", "entries=1", "switches.bad", "is_kept=true"]);
    let mut wire = daemon.greeted();
    (0..10).for_each(|_| assert_eq!(verdict(&mut wire, "u1"), 0));
    // The next write drops the field.
    daemon.run("switch --all shadow");
    assert!(!fs::read_to_string(&path).unwrap().contains("quotas"));
    assert_eq!(fs::read_to_string(daemon.plan.path("state/switches.bad")).unwrap(), later);
    let daemon = restart(daemon, libc::SIGTERM);
    assert!(!daemon.log().contains("another version"), "{}", daemon.log());
    assert!(daemon.run("switch").contains("api/per-user: disabled"));
}
