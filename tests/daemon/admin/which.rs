//! The daemon that a command reaches: two in one directory, a stale socket, an admin socket in use.

use crate::prelude::*;
use fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;

fn run(arguments: &str, socket: &Path) -> (Option<i32>, String, String) {
    outcome_of(&command(Path::new(""), arguments).arg("--socket").arg(socket).output().unwrap())
}

/// Starts a second daemon in the directory of the first, in another mode.
fn start_second(first: &Daemon, name: &str, settings: &str) -> Process {
    let file = first.plan.path("second.yaml");
    fs::write(&file, format!("rules: rules\nmode: shadow\n{settings}\n")).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("serve").arg("--config").arg(file).arg("--socket").arg(first.plan.path(name));
    command.stderr(File::create(first.plan.path("log-2")).unwrap()).stdin(Stdio::null());
    Process::start(&mut command)
}

fn await_status(socket: &Path) -> Value {
    eventually("it answers operators", || {
        let (code, out, _) = run("status --json", socket);
        (code == Some(0)).then(|| serde_json::from_str(&out).unwrap())
    })
}

#[test]
fn commands_reach_the_daemon_of_the_named_socket() {
    let first = Plan::new().start();
    let _second = start_second(&first, "u.sock", "");
    assert_eq!(await_status(&first.plan.path("u.sock"))["mode"], "shadow");
    assert_eq!(await_status(&first.socket())["mode"], "enforce");
    // A command changes only the named daemon.
    let (code, _, err) = run("switch api/per-user disabled", &first.plan.path("u.sock"));
    assert_eq!(code, Some(0), "{err}");
    let switched = |socket: &str| await_status(&first.plan.path(socket))["switches"].to_string();
    assert!(switched("u.sock").contains("per-user") && !switched("t.sock").contains("per-user"));
}

#[test]
fn refuses_commands_for_another_socket() {
    let daemon = Plan::new().start();
    // Its admin socket is at another daemon's path, as after a copied directory or a moved socket.
    fs::hard_link(daemon.plan.path("t.admin.sock"), daemon.plan.path("u.admin.sock")).unwrap();
    let _other = UnixListener::bind(daemon.plan.path("u.sock")).unwrap();
    let socket = daemon.socket().display().to_string();
    for command in [
        "status",
        "top --once",
        "reload",
        "healthcheck --live",
        "switch api/per-user disabled",
        "record --for 1s --out /dev/null",
    ] {
        let (code, _, err) = run(command, &daemon.plan.path("u.sock"));
        assert_eq!(code, Some(1), "{command}: {err}");
        let wanted = format!("u.admin.sock serves {socket}, not ");
        assert!(err.contains(&wanted) && err.contains("\nhelp: "), "{command}: {err}");
    }
    assert!(!daemon.log().contains("read again"), "no verb was carried out: {}", daemon.log());
    let status = await_status(&daemon.socket());
    assert_eq!(status["switches"]["rules"].as_array().map_or(0, Vec::len), 0, "{}", status["switches"]);
    // A link to its socket is accepted.
    std::os::unix::fs::symlink(daemon.socket(), daemon.plan.path("v.sock")).unwrap();
    fs::hard_link(daemon.plan.path("t.admin.sock"), daemon.plan.path("v.admin.sock")).unwrap();
    await_status(&daemon.plan.path("v.sock"));
}

#[test]
fn refuses_start_when_admin_socket_taken() {
    let first = Plan::new().start();
    let admin = first.plan.path("t.admin.sock");
    let taken = "admin: {socket: t.admin.sock}";
    let mut second = start_second(&first, "u.sock", taken);
    assert_eq!(second.exit_code(), Some(75));
    let log = fs::read_to_string(first.plan.path("log-2")).unwrap();
    has(&log, &["the admin socket is taken", "t.admin.sock", "help: "]);
    assert!(!first.plan.path("u.sock").exists(), "nobody waits at a socket that nobody serves");
    assert_eq!(await_status(&first.socket())["mode"], "enforce", "the first has its admin socket still");
    // A killed daemon leaves its socket, which does not block a start.
    let Daemon { process, plan } = first;
    process.signal(libc::SIGKILL);
    drop(process);
    assert!(UnixStream::connect(&admin).is_err() && admin.exists());
    let mut third = Process::start(&mut plan.command("log-3"));
    eventually("the third answers", || {
        assert!(third.has_ended().is_none(), "{}", fs::read_to_string(plan.path("log-3")).unwrap());
        (get_at(&admin, "/healthz")?.status == 200).then_some(())
    });
}

/// Runs a command on a host with these settings installed; `None` without permission to mount.
fn installed(settings: &str, arguments: &str) -> Option<(Option<i32>, String, String)> {
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-ec", script])
            .env("SETTINGS", settings)
            .env_remove("TIDEGATE_SOCKET");
        command.output().ok()
    };
    let mount =
        "mount -t tmpfs none /etc; mkdir /etc/tidegate; echo \"$SETTINGS\" >/etc/tidegate/tidegate.yaml";
    if !run(mount).is_some_and(|output| output.status.success()) {
        eprintln!("left out: only root can have a mount of its own");
        return None;
    }
    run(&format!("{mount}; {BINARY} {arguments}")).as_ref().map(outcome_of)
}

#[test]
fn installed_settings_name_the_admin_socket() {
    let daemon = Plan::new().settings("admin: {socket: named.sock}").start();
    let (socket, directory) = (daemon.socket(), daemon.plan.directory.path().display());
    let settings =
        format!("socket: {{path: {directory}/t.sock}}\nadmin: {{socket: {directory}/named.sock}}\n");
    let run = |arguments: &str| installed(&settings, arguments);
    let Some((code, out, err)) = run(&format!("status --socket {}", socket.display())) else { return };
    assert!(code == Some(0) && out.contains("mode enforce"), "{err}");
    // The settings apply to the daemon of their socket only.
    let _other = UnixListener::bind(daemon.plan.path("u.sock")).unwrap();
    let (code, _, err) = run(&format!("status --socket {directory}/u.sock")).unwrap();
    let wanted = format!("{directory}/named.sock serves {directory}/t.sock, not {directory}/u.sock");
    assert!(code == Some(1) && err.contains(&wanted), "{err}");
    // A daemon started by hand at another socket leaves named.sock alone.
    let (code, _, err) = run(&format!(
        "serve --rules {directory}/rules --socket {directory}/w.sock & pid=$!; \
         until {BINARY} status --socket {directory}/w.sock; do kill -0 $pid; sleep 0.05; done >&2; kill $pid"
    ))
    .unwrap();
    assert!(code == Some(0) && err.contains("mode enforce"), "{err}");
}

#[test]
fn settings_with_error_take_no_command_away() {
    let daemon = Plan::new().settings("admin: {socket: admin.sock}").start();
    let run = |arguments: &str| installed("modee: x", arguments);
    let Some((code, out, err)) = run(&format!("status --socket {}", daemon.socket().display())) else {
        return;
    };
    assert!(code == Some(0) && out.contains("mode enforce"), "{err}");
    // Another user learns that the socket is there.
    fs::set_permissions(daemon.plan.directory.path(), Permissions::from_mode(0o755)).unwrap();
    let mut status = daemon.command("status");
    let (code, _, err) = outcome_of(&status.current_dir("/").uid(65_534).gid(65_534).output().unwrap());
    assert!(code == Some(1) && err.contains("admin.sock") && err.contains("try sudo"), "{err}");
    // Where no daemon is, the error is named.
    fs::create_dir(daemon.plan.path("u")).unwrap();
    let _other = UnixListener::bind(daemon.plan.path("u/u.sock")).unwrap();
    let (code, _, err) = run(&format!("status --socket {}", daemon.plan.path("u/u.sock").display())).unwrap();
    assert!(code == Some(1) && err.contains("help: correct the settings") && err.contains("modee"), "{err}");
}
