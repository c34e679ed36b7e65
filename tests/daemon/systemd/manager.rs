//! The packaged units under a real systemd: every restriction is effective, and the daemon works.

use super::tools::{output_text, project};
use crate::prelude::*;
use std::collections::HashMap;

#[test]
fn runs_and_restarts_under_systemd() {
    let mut script = Command::new("bash");
    script.arg(project("tests/daemon/systemd/outside.sh")).arg(BINARY).arg(project(""));
    let output = script.output().unwrap();
    let output_text = output_text(&output);
    if output.status.code() == Some(77) {
        eprintln!("skipped: {}", output_text.lines().last().unwrap_or_default());
        return;
    }
    let facts: HashMap<&str, &str> = output_text.lines().filter_map(|line| line.split_once('=')).collect();
    let fact =
        |name: &str| facts.get(name).copied().unwrap_or_else(|| panic!("no `{name}` in\n{output_text}"));
    for (name, expected) in EXPECTED {
        assert_eq!(fact(name), *expected, "{name} in\n{output_text}");
    }
    assert!(fact("outsider").contains("tidegate.sock has mode 0660, group tidegate"), "{output_text}");
    assert!(fact("peer").starts_with("allow  NOT LIMITED: no domain"), "{output_text}");
    for name in ["other_peer", "narrow_peer"] {
        assert!(fact(name).contains("not open to user"), "{name} in\n{output_text}");
    }
    assert!(fact("tries").parse::<u32>().unwrap() > 3, "{output_text}");
    // Refused, or without effect.
    assert_ne!(fact("may_connect_elsewhere"), "yes", "{output_text}");
    // The kernel may have no pressure data; if it has, the daemon reads them.
    assert_ne!(facts.get("reads_pressure"), Some(&"no"), "{output_text}");
}

const EXPECTED: &[(&str, &str)] = &[
    ("socket", "tidegate:tidegate:660"),
    ("state", "active"),
    ("status", "serving: 1 rule in 1 domain"),
    ("user", "tidegate"),
    ("seccomp", "2"),
    ("privileges", "0000000000000000"),
    ("state_directory", "tidegate:700"),
    ("served", "yes"),
    ("slice_refused", "0"),
    ("reads_accept_queue", "yes"),
    ("reads_cpu", "yes"),
    ("reads_cpu_quota", "yes"),
    ("doctor", "yes"),
    ("scraped_here", "yes"),
    ("scraped_elsewhere", "no"),
    ("allowed_elsewhere", "yes"),
    ("reload", "yes"),
    ("killed_answered", "yes"),
    ("stopped_replaced", "yes"),
    ("stopped_served", "yes"),
    ("stopped_restarts", "1"),
    ("socket_after_failures", "active"),
    ("trigger_limit", "0"),
    ("mended", "yes"),
    ("path_stays", "yes"),
    ("drained", "yes"),
    ("may_packet", "EAFNOSUPPORT"),
    ("may_netlink", "yes"),
    ("may_connect_here", "yes"),
    ("may_write_etc", "EROFS"),
    ("may_write_usr", "EROFS"),
    ("may_write_state", "yes"),
    ("may_write_group", "EROFS"),
    ("may_read_group", "yes"),
    ("may_become_root", "EPERM"),
    ("may_be_nice", "EPERM"),
    ("narrow_served", "yes"),
    ("narrow_slice", "yes"),
    ("narrow_queue", "yes"),
];
