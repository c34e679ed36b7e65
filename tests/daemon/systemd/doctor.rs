//! `tidegate doctor` finds every fault, with help.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::daemon::{Daemon, Plan, finding};
use super::tools::said;

fn started() -> Daemon {
    let plan = Plan::new();
    let state = plan.path("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let settings = format!("state: {}\nmemory: {{max: 1MiB}}", state.display());
    plan.settings(&settings).start()
}

#[test]
fn doctor_finds_nothing_on_healthy_daemon() {
    let daemon = started();
    let output = daemon.doctor(&[]);
    for what in
        ["settings", "rules", "socket", "daemon", "admin socket", "mode", "open files", "state", "clock"]
    {
        assert!(finding(&output, what).starts_with("well "), "{}", said(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let json: Value = serde_json::from_slice(&daemon.doctor(&["--json"]).stdout).unwrap();
    assert_eq!(json["well"], true, "{json}");
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["what"].is_string() && finding["message"].is_string()));
}

#[test]
fn doctor_probes_scheduler() {
    let daemon = started();
    let told = finding(&daemon.doctor(&[]), "scheduler");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let is_new = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default()) >= (6, 12);
    // A newer kernel grants the slice; with an older one or a system call filter, the report has the reason.
    let got = told.starts_with("well ") && told.contains("100µs and got it");
    let not =
        told.starts_with("look ") && (told.contains("mend: nothing must") || told.contains("sched_setattr"));
    assert!(if is_new { got || told.contains("sched_setattr") } else { not }, "{told}");
}

#[test]
fn doctor_explains_missing_access_of_user() {
    let daemon = started();
    // Only the owner may search the test's directory.
    fs::set_permissions(daemon.plan.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let output = daemon.doctor(&["--as", "64321"]);
    let told = finding(&output, "socket");
    assert!(
        told.starts_with("WRONG") && told.contains("cannot look into") && told.contains("chmod o+x"),
        "{told}"
    );
    assert_eq!(output.status.code(), Some(1));
    // The user may search it, and is not in the group.
    fs::set_permissions(daemon.plan.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let told = finding(&daemon.doctor(&["--as", "64321"]), "socket");
    let is_root = rustix::process::geteuid().is_root();
    // No advice to join the group of root.
    let mend = if is_root { "socket.group" } else { "usermod -aG" };
    assert!(told.contains("mode 0660") && told.contains(mend) && !told.contains("-aG root"), "{told}");
    // Not even the group may connect.
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o600)).unwrap();
    let told = finding(&daemon.doctor(&["--as", "64321"]), "socket");
    assert!(told.contains("let its group write"), "{told}");
    // Every user may connect.
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    let told = finding(&daemon.doctor(&["--as", "64321"]), "socket");
    assert!(told.starts_with("look ") && told.contains("everybody on this host"), "{told}");
    let told = finding(&daemon.doctor(&["--as", "nobody-of-that-name"]), "user");
    assert!(told.starts_with("WRONG") && told.contains("there is no user"), "{told}");
}

#[test]
fn doctor_reports_broken_rules_and_stopped_daemon() {
    let mut daemon = started();
    fs::write(
        daemon.plan.path("rules").join("api.yaml"),
        "domain: api\nlimits: [{name: a, key: [], rat: 1/s}]\n",
    )
    .unwrap();
    let told = finding(&daemon.doctor(&[]), "rules");
    assert!(told.starts_with("WRONG") && told.contains("tidegate check"), "{told}");
    // A state directory that others may search.
    fs::set_permissions(daemon.plan.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    let told = finding(&daemon.doctor(&[]), "state");
    assert!(told.contains("others can look into it") && told.contains("chmod 0700"), "{told}");
    fs::remove_dir_all(daemon.plan.path("state")).unwrap();
    assert!(finding(&daemon.doctor(&[]), "state").contains("install -d -m 0700"));
    // Settings with which the daemon would not start.
    let settings = daemon.plan.path("tidegate.yaml");
    let good = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, format!("{good}mode: sometimes\n")).unwrap();
    let told = finding(&daemon.doctor(&[]), "settings");
    assert!(told.starts_with("WRONG") && told.contains("sometimes") && told.contains("enforce"), "{told}");
    fs::write(&settings, &good).unwrap();
    // A stopped daemon, and one that has exited.
    daemon.process.signal(libc::SIGSTOP);
    let told = finding(&daemon.doctor(&[]), "daemon");
    assert!(told.starts_with("WRONG") && told.contains("does not answer"), "{told}");
    daemon.process.signal(libc::SIGCONT);
    daemon.process.signal(libc::SIGTERM);
    daemon.process.exit_code();
    let output = daemon.doctor(&[]);
    assert!(finding(&output, "daemon").contains("is the daemon running?"), "{}", said(&output));
    assert!(finding(&output, "socket").contains("systemctl start"), "{}", said(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn doctor_warns_of_low_file_limit_and_shadow_mode() {
    let plan = Plan::new().settings("mode: shadow").shell("ulimit -n 200; exec \"$@\"");
    let daemon = plan.start();
    let output = daemon.doctor(&[]);
    let told = finding(&output, "open files");
    assert!(
        told.starts_with("look ") && told.contains("may open 200") && told.contains("LimitNOFILE="),
        "{told}"
    );
    let told = finding(&output, "mode");
    assert!(told.contains("shadow: no request is refused") && told.contains("mode: enforce"), "{told}");
}
