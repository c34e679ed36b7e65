//! The daemon uses a passed socket unchanged.

use super::tools::program;
use crate::prelude::*;
use std::fs::File;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;

/// The daemon behind `systemd-socket-activate`, which starts it at the first connection.
fn activated(plan: &Plan, arguments: &[String]) -> Option<Process> {
    let activate = program("systemd-socket-activate")?;
    let daemon = plan.command("log");
    let mut command = Command::new(activate);
    command.args(arguments).arg(daemon.get_program()).args(daemon.get_args());
    command.env_remove("TIDEGATE_SOCKET").env_remove("NOTIFY_SOCKET");
    command.stderr(File::create(plan.path("log")).unwrap()).stdout(Stdio::null());
    Some(Process::start(&mut command))
}

/// Connects as soon as the socket listens.
fn knock(path: &Path) -> UnixStream {
    eventually("somebody listens", || UnixStream::connect(path).ok())
}

#[test]
fn uses_passed_socket_unchanged() {
    let plan = Plan::new().settings("socket: {mode: \"0600\", group: \"4711\"}");
    let path = plan.socket();
    // One of several is taken by its name.
    let [other, own] = ["other.sock", "t.sock"].map(|name| format!("--listen={}", plan.path(name).display()));
    let arguments = [other, own, "--fdname=other:clients".into()];
    let Some(mut process) = activated(&plan, &arguments) else { return };
    let before = eventually("the socket is there", || fs::symlink_metadata(&path).ok());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // A connection from before the start is served.
    let mut wire = Wire::over(knock(&path));
    assert_eq!(wire.ask(&hello())[0], 0);
    assert_eq!(verdict_of(&wire.ask(&hit(2, "u1"))), 0);
    Wire::greeted(&path).assert_served();
    let during = fs::symlink_metadata(&path).unwrap();
    assert_eq!((during.ino(), during.gid()), (before.ino(), before.gid()));
    assert_eq!(during.mode() & 0o777, 0o640);
    assert!(!plan.path("t.sock.lock").exists(), "the path is not ours: nothing is locked");
    // The socket outlives the daemon: a new connection waits for the next daemon instead of being refused.
    process.signal(libc::SIGTERM);
    assert_eq!(process.exit_code(), Some(0));
    assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before.ino());
}

#[test]
fn commands_reach_daemon_of_passed_socket() {
    let plan = Plan::new();
    let path = plan.socket();
    let Some(_process) = activated(&plan, &[format!("--listen={}", path.display())]) else { return };
    Wire::over(knock(&path)).ask(&hello());
    let status =
        || outcome_of(&Command::new(BINARY).arg("status").arg("--socket").arg(&path).output().unwrap());
    wait_until("it answers operators", || status().0 == Some(0));
    // Another daemon owns another socket at the path.
    fs::rename(&path, plan.path("away.sock")).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (code, _, printed) = status();
    assert!(
        code == Some(1) && printed.contains(&format!(" serves a socket that was at {}, ", path.display())),
        "{printed}"
    );
    fs::rename(plan.path("away.sock"), &path).unwrap();
    assert_eq!(status().0, Some(0));
}

#[test]
fn warns_of_passed_socket_at_another_path() {
    let plan = Plan::new();
    let elsewhere = plan.path("other.sock");
    let Some(process) = activated(&plan, &[format!("--listen={}", elsewhere.display())]) else { return };
    let mut wire = Wire::over(knock(&elsewhere));
    assert_eq!(wire.ask(&hello())[0], 0);
    let daemon = Daemon { process, plan };
    daemon.await_log(&["WARN", "other.sock", "t.sock", "elsewhere than `socket.path`"]);
    assert!(!daemon.socket().exists());
}

#[test]
fn rejects_unusable_passed_sockets() {
    let table: [(&[&str], &str); 5] = [
        (&["--datagram", "--listen=SOCKET"], "another kind than a stream"),
        (&["--accept", "--listen=SOCKET"], "it does not listen: write Accept=no"),
        (&["--listen=PORT"], "is not a Unix socket: write a path as ListenStream="),
        (&["--listen=@tidegate-test-PORT"], "it has no path"),
        (
            &["--listen=SOCKET", "--listen=SOCKET.other", "--fdname=one:two"],
            "2 sockets were passed (one, two)",
        ),
    ];
    for (arguments, words) in table {
        let plan = Plan::new();
        let port = 20_000 + std::process::id() % 20_000;
        let fill = |argument: &&str| {
            argument.replace("SOCKET", plan.socket().to_str().unwrap()).replace("PORT", &port.to_string())
        };
        let arguments: Vec<String> = arguments.iter().map(fill).collect();
        let Some(mut process) = activated(&plan, &arguments) else { return };
        let accepts = arguments[0] == "--accept";
        let _held = eventually("it is woken", || wake(&plan.socket(), port, &arguments[arguments.len() - 1]));
        let log = || fs::read_to_string(plan.path("log")).unwrap();
        if !accepts {
            assert_eq!(process.exit_code(), Some(1), "{}", log());
        }
        wait_until(words, || log().contains(words));
        assert!(log().contains("ERROR"), "{}", log());
    }
}

/// Connects or sends to a socket of any kind.
fn wake(path: &Path, port: u32, last: &str) -> Option<Box<dyn std::any::Any>> {
    if last.contains('@') {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("tidegate-test-{port}");
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        return UnixStream::connect_addr(&address).ok().map(|stream| Box::new(stream) as _);
    }
    if let Ok(stream) = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())) {
        return Some(Box::new(stream));
    }
    match UnixStream::connect(path) {
        Ok(stream) => Some(Box::new(stream)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(_) => {
            let sender = UnixDatagram::unbound().unwrap();
            sender.send_to(b"x", path).ok().map(|_| Box::new(sender) as _)
        }
    }
}

#[test]
fn ignores_sockets_passed_to_another_process() {
    // The variables of another process, as in a shell under systemd: LISTEN_PID differs.
    let plan = Plan::new().shell("LISTEN_PID=1 LISTEN_FDS=1 exec \"$@\" 3</dev/null");
    plan.start().greeted().assert_served();
    // A descriptor that is not a socket, one that is not open, and too many.
    let table = [
        ("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3</dev/null", "it is not a usable socket"),
        ("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&-", "cannot be taken"),
        ("LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a exec \"$@\" 3</dev/null 4</dev/null", "must agree"),
        ("LISTEN_PID=$$ LISTEN_FDS=900 exec \"$@\" 3</dev/null", "more than 16"),
    ];
    for (script, words) in table {
        let (code, log) = Plan::new().shell(script).refused();
        assert_eq!(code, Some(1), "{script}: {log}");
        has(&log, &["ERROR", words]);
    }
}
