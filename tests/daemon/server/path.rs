//! The socket at its path.

use crate::prelude::*;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[test]
fn socket_has_its_mode_and_group_from_the_start() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let mine = rustix::process::getegid().as_raw();
    let other = if is_root() { 12_345 } else { mine };
    for (settings, group, mask) in [("", mine, "0"), (&*format!(", group: \"{other}\""), other, "077")] {
        let plan = Plan::new().settings(&format!("socket: {{mode: \"0620\"{settings}}}"));
        let plan = plan.shell(format!("umask {mask}; exec \"$@\""));
        let watch = init(CreateFlags::NONBLOCK).unwrap();
        let flags = WatchFlags::CREATE | WatchFlags::ATTRIB | WatchFlags::MOVED_TO;
        add_watch(&watch, plan.directory.path(), flags).unwrap();
        let daemon = plan.start();
        let mut space = [std::mem::MaybeUninit::uninit(); 4_096];
        let mut events = Reader::new(&watch, &mut space);
        let mut seen = Vec::new();
        while let Ok(event) = events.next() {
            let name = event.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("t.so") && !name.ends_with(".lock") {
                seen.push((event.events(), name));
            }
        }
        // A group is set before the socket has its name, and the mode never changes.
        let change = (ReadFlags::ATTRIB, "t.sock~".into());
        seen.retain(|event| settings.is_empty() || *event != change);
        assert_eq!(seen, [(ReadFlags::CREATE, "t.sock~".into()), (ReadFlags::MOVED_TO, "t.sock".into())]);
        let found = fs::symlink_metadata(daemon.socket()).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o620, group));
    }
}

/// Adapters bind on threads of their own. Each socket has a temporary name.
#[test]
fn sockets_that_are_bound_together_have_their_modes() {
    let directory = tempfile::tempdir().unwrap();
    let together = std::sync::Barrier::new(3);
    let bind = |mode: u32| {
        let is_right = |number: &u32| {
            // The names differ in the last byte.
            let path = directory.path().join(format!("{number}.{}", mode % 7));
            together.wait();
            let bound = tidegate::server::Listener::bind(&path, mode, None);
            let found = fs::symlink_metadata(path).map(|found| found.mode() & 0o777);
            bound.is_ok() && found.is_ok_and(|found| found == mode)
        };
        assert_eq!((0..1_000).filter(is_right).count(), 1_000);
    };
    std::thread::scope(|scope| [0o666, 0o600, 0o620].map(|mode| scope.spawn(move || bind(mode))).map(drop));
}

#[test]
fn replaces_socket_of_killed_daemon() {
    let Daemon { process, plan } = daemon();
    process.signal(libc::SIGKILL);
    drop(process);
    assert!(is_socket(&plan.socket()));
    plan.start().greeted().assert_served();
}

/// The number of rounds: `TWO_DAEMONS=100` for a night.
fn rounds() -> u64 {
    std::env::var("TWO_DAEMONS").map_or(20, |rounds| rounds.parse().unwrap())
}

#[test]
fn socket_path_always_exists_while_two_daemons_compete() {
    let plan = Plan::new();
    let (socket, done) = (plan.socket(), AtomicBool::new(false));
    let watch = || {
        let (mut looks, mut missing) = (0_u64, 0_u64);
        while !done.load(Ordering::Relaxed) {
            looks += 1;
            missing += u64::from(!is_socket(&socket));
        }
        (looks, missing)
    };
    thread::scope(|scope| {
        let stops = SetOnDrop(&done);
        let mut watcher = None;
        for round in 0..rounds() {
            let mut both = [1, 2].map(|number| Process::start(&mut plan.command(&format!("log{number}"))));
            let loser =
                eventually("one gives way", || both.iter_mut().position(|one| one.has_ended().is_some()));
            assert_eq!(both[loser].exit_code(), Some(75), "round {round}");
            let log = fs::read_to_string(plan.path(&format!("log{}", loser + 1))).unwrap();
            assert!(log.contains("another tidegate is running here"), "{log}");
            let stream = eventually("the other listens", || UnixStream::connect(&socket).ok());
            let mut wire = Wire::over(stream);
            assert_eq!(wire.ask(&hello())[0], 0);
            // Each later round begins with the socket of a killed daemon.
            watcher.get_or_insert_with(|| scope.spawn(watch));
            assert_eq!(both[1 - loser].has_ended(), None);
            both[1 - loser].signal(libc::SIGKILL);
            both[1 - loser].exit_code();
        }
        drop(stops);
        let (looks, missing) = watcher.expect("a round").join().unwrap();
        assert!(looks > rounds() && missing == 0, "missing at {missing} of {looks} looks");
    });
}

#[test]
fn refuses_start_when_unlocked_listener_has_path() {
    let plan = Plan::new();
    let listener = UnixListener::bind(plan.socket()).unwrap();
    let (code, error) = plan.refused();
    assert_eq!(code, Some(75), "{error}");
    assert!(error.contains("another process is listening here"), "{error}");
    // Its queue may be so full that a connect would block.
    let _waiting: Vec<_> =
        std::iter::repeat_with(|| connect_without_waiting(&plan.socket())).map_while(|c| c).collect();
    let (code, error) = plan.refused();
    assert_eq!(code, Some(75), "{error}");
    drop(listener);
    plan.start().greeted().assert_served();
}

fn connect_without_waiting(path: &Path) -> Option<rustix::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok().map(|()| socket)
}

#[test]
fn refuses_start_and_leaves_whatever_is_in_the_way() {
    let plan = Plan::new().settings("socket: {mode: \"0666\"}");
    let precious = plan.path("precious");
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
    let _other = UnixListener::bind(plan.path("other")).unwrap();
    let put: [fn(&Path); 5] = [
        |path| symlink(path.with_file_name("precious"), path).unwrap(),
        |path| symlink(path.with_file_name("nothing"), path).unwrap(),
        |path| symlink(path.with_file_name("other"), path).unwrap(),
        |path| fs::write(path, "in the way").unwrap(),
        |path| fs::create_dir(path).unwrap(),
    ];
    // The socket, its temporary name with a tilde behind, and its lock, which is a file.
    for (name, put) in [("t.sock.lock", &put[..1]), ("t.sock", &put), ("t.sock~", &put)] {
        let path = plan.path(name);
        for (number, put) in put.iter().enumerate() {
            put(&path);
            let found = || fs::symlink_metadata(&path).map(|found| (found.ino(), found.len())).unwrap();
            let before = found();
            let (code, error) = plan.refused();
            assert_eq!((code, found()), (Some(1), before), "{name} {number}: {error}");
            has(&error, &[name]);
            if name == "t.sock" {
                has(
                    &error,
                    &[
                        "something that is not a socket is in the way",
                        "help: remove it, or name another path",
                    ],
                );
            }
            assert!(!plan.path("nothing").exists(), "{name} {number}");
            if path.is_dir() { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
        }
    }
    let mode = fs::metadata(&precious).unwrap().mode() & 0o777;
    assert_eq!((&*fs::read_to_string(&precious).unwrap(), mode), ("precious", 0o600));
    // A socket left by an interrupted start.
    drop(UnixListener::bind(plan.path("t.sock~")).unwrap());
    let daemon = plan.start();
    daemon.greeted().assert_served();
    assert!(!daemon.plan.path("t.sock~").exists());
}

#[test]
fn serves_at_longest_path_of_kernel() {
    let plan = Plan::new();
    let path = plan.path(&"s".repeat(106 - plan.directory.path().as_os_str().len()));
    let mut command = Command::new(BINARY);
    fs::write(plan.path("tidegate.yaml"), "rules: rules\n").unwrap();
    command.args(["serve", "--config"]).arg(plan.path("tidegate.yaml")).arg("--socket").arg(&path);
    let _process = Process::start(command.stderr(Stdio::null()));
    eventually("it listens", || UnixStream::connect(&path).ok());
    Wire::greeted(&path).assert_served();
}

#[test]
fn removes_own_socket_at_exit_only() {
    let mut ours = daemon();
    ours.stop();
    assert!(!ours.socket().exists());

    let mut replaced = daemon();
    fs::remove_file(replaced.socket()).unwrap();
    let _other = UnixListener::bind(replaced.socket()).unwrap();
    replaced.stop();
    assert!(is_socket(&replaced.socket()), "the other one's socket is still there");
}

#[test]
fn makes_removed_socket_again() {
    let daemon = daemon();
    let mut before = daemon.greeted();
    assert_eq!(before.ask(&hit(1, "u1"))[0], 1);
    let (socket, lock) = (daemon.socket(), daemon.plan.path("t.sock.lock"));
    let connect = || UnixStream::connect(&socket).ok();
    let remove: [(&str, &dyn Fn()); 3] = [
        ("the file", &|| fs::remove_file(&socket).unwrap()),
        ("the file and its lock", &|| {
            [&socket, &lock].into_iter().for_each(|path| fs::remove_file(path).unwrap());
        }),
        ("replaced by a stale one", &|| {
            fs::remove_file(&socket).unwrap();
            drop(UnixListener::bind(&socket).unwrap());
        }),
    ];
    for (what, remove) in remove {
        remove();
        let mut wire = Wire::over(eventually(what, connect));
        assert_eq!(wire.ask(&hello())[0], 0, "{what}");
        assert_eq!(fs::symlink_metadata(&socket).unwrap().mode() & 0o777, 0o660, "{what}");
        // Commands find the daemon by the new file, at the admin socket that is made again as well.
        fs::remove_file(daemon.plan.path("t.admin.sock")).unwrap();
        eventually("the admin socket", || Some(()).filter(|()| daemon.outcome("status").0 == Some(0)));
        assert!(daemon.run("status").contains("mode enforce"), "{what}");
        let (code, log) = daemon.plan.refused();
        assert_eq!(code, Some(75), "{what}: {log}");
        let pid = daemon.process.id();
        assert!(log.contains(&format!("another tidegate is running here: process {pid}")), "{log}");
        assert!(log.contains(&format!("help: to replace it: kill {pid} ")), "{log}");
    }
    assert_eq!(before.ask(&hit(2, "u1"))[0], 1);
    daemon.await_log(&["WARN", "the socket file was removed or replaced: it is made again"]);
}

#[test]
fn is_unready_while_another_process_has_its_path() {
    let daemon = daemon();
    let ready = || get(&daemon, "/readyz");
    eventually("it is ready", || Some(()).filter(|()| ready().status == 200));
    fs::remove_file(daemon.socket()).unwrap();
    let other = UnixListener::bind(daemon.socket()).unwrap();
    let reasons = eventually("it is noticed", || Some(ready()).filter(|ready| ready.status == 503)).body;
    assert!(reasons.contains("its socket file was removed or replaced"), "{reasons}");
    assert!(is_socket(&daemon.socket()), "the other one's socket is still there");
    drop(other);
    fs::remove_file(daemon.socket()).unwrap();
    eventually("it is ready again", || Some(()).filter(|()| ready().status == 200));
    assert_eq!(daemon.connect().ask(&hello())[0], 0);
}
