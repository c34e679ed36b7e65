//! Two daemons at one path.

use std::os::unix::fs::{MetadataExt, symlink};
use std::{fs, thread};

use super::daemon::{Plan, Process, eventually};
use super::wire::Wire;

/// The number of rounds: `TWO_DAEMONS=100` for a night.
fn rounds() -> usize {
    std::env::var("TWO_DAEMONS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

#[test]
fn socket_path_always_exists_while_two_daemons_compete() {
    let plan = Plan::new();
    // A killed daemon's socket: from here on the path always exists.
    let mut first = Process::start(&mut plan.command("first"));
    eventually("it listens", || plan.socket().exists().then_some(()));
    first.signal(libc::SIGKILL);
    first.exit_code();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (socket, done) = (plan.socket(), &done);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut looks, mut missing) = (0_u64, 0_u64);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                looks += 1;
                missing += u64::from(fs::symlink_metadata(&socket).is_err());
            }
            (looks, missing)
        });
        for round in 0..rounds() {
            let mut both = [1, 2].map(|number| Process::start(&mut plan.command(&format!("log{number}"))));
            let loser =
                eventually("one gives way", || both.iter_mut().position(|one| one.has_ended().is_some()));
            assert_eq!(both[loser].exit_code(), Some(75), "round {round}");
            Wire::greeted(&eventually("the other listens", || {
                std::os::unix::net::UnixStream::connect(plan.socket()).is_ok().then(|| plan.socket())
            }))
            .assert_served();
            assert_eq!(both[1 - loser].has_ended(), None);
            both[1 - loser].signal(libc::SIGKILL);
            both[1 - loser].exit_code();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let (looks, missing) = watcher.join().unwrap();
        assert!(looks > 1_000 && missing == 0, "missing at {missing} of {looks} looks");
    });
}

#[test]
fn refuses_start_at_symlink_path() {
    let plan = Plan::new().settings("socket: {mode: \"0666\"}");
    let precious = plan.path("precious");
    fs::write(&precious, "precious").unwrap();
    let before = fs::metadata(&precious).unwrap();
    symlink(&precious, plan.socket()).unwrap();
    let mut process = Process::start(&mut plan.command("log"));
    assert_eq!(process.exit_code(), Some(1));
    let after = fs::metadata(&precious).unwrap();
    assert_eq!((before.mode(), before.uid(), before.ino()), (after.mode(), after.uid(), after.ino()));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}
