//! What callers send is seen by nobody else: in no core, by no other process of the same user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::daemon::{BINARY, Plan, Process, eventually};

/// The directory that the kernel keeps about a process.
fn proc_of(plan: &Plan) -> std::path::PathBuf {
    let pid = fs::read_to_string(plan.path("pid")).unwrap();
    Path::new("/proc").join(pid.trim())
}

#[test]
fn as_a_service_it_leaves_no_core_and_lets_nobody_look_into_it() {
    let is_root = rustix::process::geteuid().is_root();
    // Root looks everywhere: who it is for then is another user.
    let run = if is_root {
        "shift; echo $$ >\"$PLAN/pid\"; \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$PLAN/binary\" \"$@\""
    } else {
        "echo $$ >\"$PLAN/pid\"; exec \"$@\""
    };
    let plan = Plan::new().shell(run);
    fs::set_permissions(plan.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if is_root {
        fs::copy(BINARY, plan.path("binary")).unwrap();
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
        // What belongs to root there can be read by root alone: memory, environment, descriptors.
        let owner = fs::metadata(about.join("mem")).unwrap().uid();
        assert_eq!(owner == 0, owner_is_root, "managed: {managed}");
        process.signal(libc::SIGKILL);
        process.exit_code();
    }
}
