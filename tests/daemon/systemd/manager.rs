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
    for (expected, names) in EXPECTED {
        for name in names.split(' ') {
            assert_eq!(fact(name), *expected, "{name} in\n{output_text}");
        }
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

/// Results, and the facts that have them.
const EXPECTED: &[(&str, &str)] = &[
    ("tidegate:tidegate:660", "socket"),
    ("active", "state socket_after_failures"),
    ("serving: 1 rule in 1 domain", "status"),
    ("tidegate", "user"),
    ("2", "seccomp"),
    ("0000000000000000", "privileges"),
    ("tidegate:700", "state_directory"),
    (
        "yes",
        "served reads_accept_queue reads_cpu reads_cpu_quota doctor scraped_here allowed_elsewhere \
         reload killed_answered stopped_replaced stopped_served mended path_stays drained may_netlink \
         may_connect_here may_write_state may_read_group narrow_served narrow_slice narrow_queue",
    ),
    ("0", "slice_refused trigger_limit"),
    ("no", "scraped_elsewhere"),
    ("1", "stopped_restarts"),
    ("EAFNOSUPPORT", "may_packet"),
    ("EROFS", "may_write_etc may_write_usr may_write_group"),
    ("EPERM", "may_become_root may_be_nice"),
];
