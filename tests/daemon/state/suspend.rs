//! A suspended machine: its boot-time clock has advanced, its monotonic clock has not.

use super::restarts::{end, plan};
use super::trouble::may;
use crate::prelude::*;

#[test]
fn fills_buckets_while_the_machine_sleeps() {
    needs!(may("unshare", &["--mount", "--time", "--boottime", "60"]));
    // A time namespace with only the boot-time clock ahead. Without /proc the daemon cannot detect it, and
    // assumes a suspend of two hours.
    let ahead = |seconds: u32| {
        format!(
            "exec unshare --mount --time --boottime {seconds} \
             sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh \"$@\""
        )
    };
    let mut plan = plan();
    let boot_id = plan.path("boot_id");
    fs::write(&boot_id, "one").unwrap();
    plan.arguments.extend(["--boot-id".into(), boot_id.to_string_lossy().into_owned()]);
    // Five tokens, of which one per hour refills.
    for (seconds, left) in [(0, 5), (7_200, 2), (7_200, 0)] {
        let daemon = plan.shell(ahead(seconds)).start();
        assert_eq!(daemon.greeted().allowed("u", 6), left, "{seconds} s ahead");
        let (next, log) = end(daemon);
        assert!(!log.contains("snapshot cannot be used"), "{log}");
        plan = next;
    }
}
