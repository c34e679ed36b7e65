//! The packaged units under a real systemd: all that they forbid is forbidden, and nothing that the daemon needs.

use std::collections::HashMap;
use std::process::Command;

use super::daemon::BINARY;
use super::tools::{project, said};

#[test]
fn under_systemd_it_is_kept_running_and_sees_what_it_must() {
    let mut script = Command::new("bash");
    script.arg(project("tests/systemd/outside.sh")).arg(BINARY);
    script.arg(project("systemd")).arg(project("tests/systemd"));
    let output = script.output().unwrap();
    let said = said(&output);
    if output.status.code() == Some(77) {
        eprintln!("skipped: {}", said.lines().last().unwrap_or_default());
        return;
    }
    let facts: HashMap<&str, &str> = said.lines().filter_map(|line| line.split_once('=')).collect();
    let fact = |name: &str| facts.get(name).copied().unwrap_or_else(|| panic!("no `{name}` in\n{said}"));
    for (name, expected) in [
        ("mode", "660"),
        ("state", "active"),
        ("status", "serving: 1 rules in 1 domains"),
        ("seccomp", "2"),
        ("privileges", "0000000000000000"),
        ("served", "yes"),
        ("slice_refused", "0"),
        ("reload", "yes"),
        ("stopped_replaced", "yes"),
        ("stopped_result", "1"),
        ("killed_replaced", "yes"),
        ("socket_after_failures", "active"),
        ("mended", "yes"),
        ("path_stays", "yes"),
        ("drained", "yes"),
        ("narrow_served", "yes"),
        ("narrow_slice", "yes"),
        ("narrow_queue", "yes"),
    ] {
        assert_eq!(fact(name), expected, "{name} in\n{said}");
    }
    assert!(fact("peer").starts_with("allow  no rule"), "{said}");
    for name in ["other_peer", "narrow_peer"] {
        assert!(fact(name).contains("not open to user"), "{name} in\n{said}");
    }
    // The queue must be readable; of a quota there may be none, and a kernel may count no pressure.
    let unread: Vec<&str> = said.lines().filter(|line| line.contains("no reading")).collect();
    assert!(!unread.iter().any(|line| line.contains("accept_queue")), "{unread:?}");
    assert!(fact("tries").parse::<u32>().unwrap() > 3, "{said}");
}
