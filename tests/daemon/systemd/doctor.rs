//! `tidegate doctor` finds every fault, with help.

use super::tools::output_text;
use crate::prelude::*;
use std::os::unix::fs::PermissionsExt;

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
        assert!(finding(&output, what).starts_with("well "), "{}", output_text(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let json: Value = serde_json::from_slice(&daemon.doctor(&["--json"]).stdout).unwrap();
    assert_eq!(json["well"], true, "{json}");
    let findings = json["findings"].as_array().unwrap();
    for finding in findings {
        let keys: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["mend", "message", "severity", "what"], "{finding}");
        assert!(finding["what"].is_string() && finding["message"].is_string());
    }
}

#[test]
fn doctor_examines_a_daemon_under_another_name() {
    // Its service manager names the state directory.
    let script = r#"export STATE_DIRECTORY="${4%/*}/state"; own=${4%/*}/gate; ln -s "$1" "$own"; shift; exec "$own" "$@""#;
    let plan = Plan::new().shell(script);
    fs::create_dir(plan.path("state")).unwrap();
    fs::set_permissions(plan.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
    let daemon = plan.start();
    let output = daemon.command("doctor").output().unwrap();
    let state = daemon.plan.path("state").display().to_string();
    assert!(finding(&output, "state").contains(&state), "{}", output_text(&output));
}

#[test]
fn doctor_examines_the_daemon_that_runs() {
    let daemon = started();
    // By its socket alone: the command line of its process has the rest.
    let examined = |arguments: &str| daemon.command(&format!("doctor {arguments}")).output().unwrap();
    let output = examined("");
    let [settings, rules] =
        ["tidegate.yaml", "rules"].map(|name| daemon.plan.path(name).display().to_string());
    assert!(finding(&output, "settings").contains(&settings), "{}", output_text(&output));
    finds(&output, "well ", "rules", &[&format!("{rules}: 1 rule in 1 domain")]);
    assert!(finding(&output, "open files").starts_with("well "), "{}", output_text(&output));
    // Rules that a reload refused.
    fs::write(daemon.plan.path("rules/api.yaml"), "domain: api\nlimits: [{name: a, key: [], rat: 1/s}]\n")
        .unwrap();
    daemon.fail("reload", 1);
    let help = format!("tidegate check {rules}` shows why");
    finds(&examined(""), "WRONG", "readiness", &[&help]);
    // A socket that no daemon serves.
    let text = output_text(&examined("--socket /nonexistent/t.sock"));
    let socket = daemon.socket().display().to_string();
    has(&text, &[&format!("serves {socket}"), &format!("TIDEGATE_SOCKET={socket}")]);
    // An admin socket that does not answer.
    has(&finding(&examined("--admin /nonexistent/t.sock"), "admin socket"), &["/nonexistent/t.sock"]);
}

#[test]
fn doctor_explains_missing_access_of_user() {
    let daemon = started();
    // Only the owner may search the test's directory.
    fs::set_permissions(daemon.plan.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let output = daemon.doctor(&["--as", "64321"]);
    finds(&output, "WRONG", "socket", &["cannot look into", "chmod o+x"]);
    assert_eq!(output.status.code(), Some(1));
    // The user may search it, and is not in the group.
    fs::set_permissions(daemon.plan.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let text = finding(&daemon.doctor(&["--as", "64321"]), "socket");
    let is_root = is_root();
    // No advice to join the group of root.
    let help = if is_root { "groupadd --system tidegate" } else { "usermod -aG" };
    assert!(text.contains("mode 0660") && text.contains(help) && !text.contains("-aG root"), "{text}");
    // Not even the group may connect.
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o600)).unwrap();
    has(&finding(&daemon.doctor(&["--as", "64321"]), "socket"), &["let its group write"]);
    // Every user may connect.
    fs::set_permissions(daemon.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    finds(&daemon.doctor(&["--as", "64321"]), "look ", "socket", &["everybody on this host"]);
    finds(&daemon.doctor(&["--as", "nobody-of-that-name"]), "WRONG", "user", &["there is no user"]);
}

#[test]
fn doctor_reports_broken_rules_and_stopped_daemon() {
    let mut daemon = started();
    fs::write(
        daemon.plan.path("rules").join("api.yaml"),
        "domain: api\nlimits: [{name: a, key: [], rat: 1/s}]\n",
    )
    .unwrap();
    finds(&daemon.doctor(&[]), "WRONG", "rules", &["tidegate check"]);
    // A state directory that others may search.
    fs::set_permissions(daemon.plan.path("state"), fs::Permissions::from_mode(0o755)).unwrap();
    has(&finding(&daemon.doctor(&[]), "state"), &["others can look into it", "chmod 0700"]);
    // Files that other users may change.
    let set = |name: &str, mode| {
        fs::set_permissions(daemon.plan.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let modes =
        [("rules", 0o775), ("rules/api.yaml", 0o664), ("tidegate.yaml", 0o660), ("state/hash-key", 0o600)];
    modes.iter().for_each(|(name, mode)| set(name, *mode));
    assert!(!output_text(&daemon.doctor(&[])).contains("may change it"));
    for (name, mode, whose) in [
        ("rules/api.yaml", 0o646, "every user"),
        ("tidegate.yaml", 0o666, "every user"),
        ("state/hash-key", 0o602, "every user"),
        ("state/hash-key", 0o660, "the group "),
    ] {
        let (file, before) = (daemon.plan.path(name), modes.iter().find(|(of, _)| *of == name).unwrap().1);
        set(name, mode);
        has(&output_text(&daemon.doctor(&[])), &[&format!("{}: {whose}", file.display())]);
        set(name, before);
    }
    fs::set_permissions(daemon.plan.path("rules"), fs::Permissions::from_mode(0o777)).unwrap();
    finds(&daemon.doctor(&[]), "look ", "files", &["rules: every user may change it"]);
    for (mode, is_found) in [(0o777, true), (0o1777, false), (0o757, true), (0o755, false)] {
        set("", mode);
        assert_eq!(
            output_text(&daemon.doctor(&[])).matches("every user may replace the sockets").count(),
            usize::from(is_found),
            "{mode:o}"
        );
    }
    fs::set_permissions(daemon.plan.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    has(&output_text(&daemon.doctor(&[])), &["every user may replace the files of the state directory"]);
    fs::remove_dir_all(daemon.plan.path("state")).unwrap();
    assert!(finding(&daemon.doctor(&[]), "state").contains("install -d -m 0700"));
    // Settings with which the daemon would not start.
    let settings = daemon.plan.path("tidegate.yaml");
    let good = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, format!("{good}mode: sometimes\n")).unwrap();
    finds(&daemon.doctor(&[]), "WRONG", "settings", &["sometimes", "enforce"]);
    fs::write(&settings, &good).unwrap();
    // A stopped daemon, and one that has exited.
    daemon.process.signal(libc::SIGSTOP);
    let pid = daemon.process.id();
    let help = format!("kill -CONT {pid}");
    finds(&daemon.doctor(&[]), "WRONG", "daemon", &["stopped (state T)", &help]);
    daemon.process.signal(libc::SIGCONT);
    daemon.process.signal(libc::SIGKILL);
    daemon.process.exit_code();
    let output = daemon.doctor(&[]);
    finds(&output, "WRONG", "daemon", &["has ended", "tidegate serve"]);
    assert!(!output_text(&output).contains("admin socket"), "one finding: {}", output_text(&output));
    fs::remove_file(daemon.socket()).unwrap();
    let output = daemon.doctor(&[]);
    assert!(finding(&output, "socket").contains("tidegate serve --socket"), "{}", output_text(&output));
    assert!(!output_text(&output).contains("WRONG  daemon: "), "one finding: {}", output_text(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn doctor_warns_of_low_file_limit_and_shadow_mode() {
    let plan = Plan::new().settings("mode: shadow").shell("ulimit -n 200; exec \"$@\"");
    let daemon = plan.start();
    let output = daemon.doctor(&[]);
    finds(&output, "look ", "open files", &["may open 200", "LimitNOFILE="]);
    has(&finding(&output, "mode"), &["shadow: no request is refused", "mode: enforce"]);
}
