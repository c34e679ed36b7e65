//! Access to the operators' listeners: users, paths per listener, an admin socket that cannot be bound.

use crate::prelude::*;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

#[test]
fn creates_admin_socket_for_owner_only() {
    let daemon = daemon();
    let there = fs::symlink_metadata(admin_socket(&daemon)).unwrap();
    assert_eq!(there.mode() & 0o777, 0o600);
    assert_eq!(there.uid(), rustix::process::geteuid().as_raw());
}

/// The user of the commands that are refused.
const OTHER: u32 = 4_711;

const COMMANDS: [&str; 7] = [
    "reload",
    "dashboard",
    "switch",
    "switch --all disabled",
    "block per-user user=u --for 1h",
    "unblock per-user user=u",
    "reset per-user user=u",
];

#[test]
fn refuses_another_user_at_any_socket_mode() {
    needs!(is_root());
    let daemon = daemon();
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let refused = |command: &str| {
        let mut other = Command::new(BINARY);
        other.args(command.split(' ')).arg("--admin").arg(admin_socket(&daemon)).stdin(Stdio::null());
        let output = other.current_dir("/").uid(OTHER).gid(OTHER).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    // The path fails first, as the test's directory is root's.
    COMMANDS.iter().for_each(|command| drop(refused(command)));
    open(daemon.plan.directory.path(), 0o755);
    for command in COMMANDS {
        let message = refused(command);
        assert!(
            message.contains("Permission denied") && message.contains("only root and the daemon's own user"),
            "{command}: {message}"
        );
    }
    // With an open mode, the kernel's peer credentials decide.
    open(&admin_socket(&daemon), 0o666);
    for command in COMMANDS.iter().cycle().take(3 * COMMANDS.len()) {
        let message = refused(command);
        assert!(message.contains("only root and the daemon's own user"), "{command}: {message}");
    }
    let log = daemon.await_log(&["refused on the admin socket", "user=4711"]);
    let lines = daemon.log().matches("refused on the admin socket").count();
    // A busy machine may take longer than the ten seconds of the first eight.
    assert!(lines == 8 || daemon.log().contains("suppressed="), "{log}");
    assert!(!daemon.log().contains("read again"), "nothing was reloaded");
    let found = get(&daemon, "/switches").json();
    assert_eq!(json!([found["switches"], found["blocks"], found["mode"]]), json!([[], [], "enforce"]));
    assert_eq!(get(&daemon, "/healthz").status, 200, "the places of the refused are free again");
}

#[test]
fn serves_only_metrics_and_health_over_tcp() {
    let daemon = Plan::new().settings("metrics: {listen: \"127.0.0.1:0\"}").start();
    let port = daemon.port_of("metrics are served");
    assert_ne!(port, 0, "the one that was free");
    wait_until("every thread has shown that it lives", || get(&daemon, "/readyz").status == 200);
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(get_over_tcp(port, path).status, 200, "{path}");
        assert_eq!(get(&daemon, path).status, 200, "{path}");
    }
    for path in ["/", "/status", "/rules", "/reload", "/switch", "/metrics/"] {
        let answer = get_over_tcp(port, path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.error().contains("admin socket"), "{}", answer.body);
    }
}

#[test]
fn logs_taken_metrics_port_and_retries() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let daemon = Plan::new().settings(&format!("metrics: {{listen: \"127.0.0.1:{port}\"}}")).start();
    daemon.await_log(&["no metrics over TCP", "correct metrics.listen", &port.to_string()]);
    assert!(daemon.run("status").contains("warning: no metrics over TCP: 127.0.0.1"));
    daemon.greeted().assert_served();
    assert_eq!(get(&daemon, "/metrics").status, 200, "they are on the admin socket, too");
    drop(taken);
    daemon.await_log(&["metrics are served"]);
    assert_eq!(get_over_tcp(port, "/healthz").status, 200);
    assert_eq!(daemon.log().matches("no metrics over TCP").count(), 1, "{}", daemon.log());
}

#[test]
fn logs_unavailable_admin_socket_and_retries() {
    let plan = Plan::new().settings("admin: {socket: later/elsewhere.sock}");
    let path = plan.path("later/elsewhere.sock");
    let daemon = plan.start();
    daemon.await_log(&["no admin socket", "later/elsewhere.sock.lock", "help: "]);
    daemon.greeted().assert_served();
    fs::create_dir(daemon.plan.path("later")).unwrap();
    eventually("it has its admin socket", || (get_at(&path, "/healthz")?.status == 200).then_some(()));
    // Neither a directory nor a permission would help.
    let daemon = Plan::new().settings("admin: {socket: /proc/admin.sock}").start();
    daemon.await_log(&["no admin socket", "help: "]);
    daemon.greeted().assert_served();
}
