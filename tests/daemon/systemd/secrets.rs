//! Callers' data stays private: in no core dump, and unreadable by other processes of the same user.

use crate::prelude::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// The /proc directory of the daemon.
fn proc_of(plan: &Plan) -> PathBuf {
    let pid = fs::read_to_string(plan.path("pid")).unwrap();
    Path::new("/proc").join(pid.trim())
}

#[test]
fn service_forbids_core_dumps_and_ptrace() {
    let is_root = is_root();
    // Root may read any process, so as root the daemon runs as another user.
    let run = if is_root {
        "shift; echo $$ >\"$PLAN/pid\"; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$PLAN/binary\" \"$@\""
    } else {
        "echo $$ >\"$PLAN/pid\"; exec \"$@\""
    };
    let plan = Plan::new().shell(run);
    fs::set_permissions(plan.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if is_root {
        // Use another process: a fork of this one could keep the copy open for writing during exec.
        assert!(Command::new("cp").arg(BINARY).arg(plan.path("binary")).status().unwrap().success());
    }
    for (managed, owner_is_root) in [(false, false), (true, true)] {
        let mut command = plan.command("log");
        command.env("PLAN", plan.directory.path()).env_remove("NOTIFY_SOCKET");
        if managed {
            command.env("NOTIFY_SOCKET", plan.path("nobody"));
        }
        let mut process = Process::start(&mut command);
        let log = || fs::read_to_string(plan.path("log")).unwrap();
        eventually("it serves", || {
            assert!(process.has_ended().is_none(), "{}", log());
            log().contains(" serving ").then_some(())
        });
        let about = proc_of(&plan);
        let limits = fs::read_to_string(about.join("limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let numbers: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
        assert_eq!(numbers, ["0", "0"], "{core}");
        // Files owned by root there are readable by root only: memory, environment, descriptors.
        let owner = fs::metadata(about.join("mem")).unwrap().uid();
        assert_eq!(owner == 0, owner_is_root, "managed: {managed}");
        process.signal(libc::SIGKILL);
        process.exit_code();
    }
}
