//! The process at the other end of a socket, and its exit.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate::sys;

/// Whether the process has exited or does within `seconds`.
fn ended(process: &OwnedFd, seconds: i64) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut watched, Some(&timeout)).unwrap() == 1
}

#[test]
fn pidfd_reports_exit_while_child_holds_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // It connects and forks: the child keeps the connection after its parent is killed.
    let program = "import os, socket, sys, time\n\
                   s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
                   child = os.fork()\n\
                   if child: s.send(b'%d\\n' % child)\n\
                   time.sleep(60)";
    let mut parent = Command::new("python3")
        .args(["-c", program, path.to_str().unwrap()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    let mut child = String::new();
    while !child.ends_with('\n') {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        child.push(char::from(byte[0]));
    }
    assert_eq!(sys::peer_pid(&socket).unwrap(), Some(parent.id()));
    let (by_socket, by_number) = (sys::peer_pidfd(&socket).unwrap(), sys::pidfd_open(parent.id()).unwrap());
    let child = sys::pidfd_open(child.trim().parse().unwrap()).unwrap();
    assert!(!ended(&by_socket, 0) && !ended(&by_number, 0) && !ended(&child, 0));
    parent.kill().unwrap();
    assert!(ended(&by_socket, 10) && ended(&by_number, 10), "at once");
    assert!(!ended(&child, 0), "its child lives on");
    parent.wait().unwrap();
    socket.set_nonblocking(true).unwrap();
    let silence = socket.read(&mut [0]).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock, "the connection is open");
    rustix::process::pidfd_send_signal(&child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn socket_pair_peer_is_this_process() {
    let (one, _other) = UnixStream::pair().unwrap();
    assert_eq!(sys::peer_pid(&one).unwrap(), Some(std::process::id()));
    assert!(!ended(&sys::peer_pidfd(&one).unwrap(), 0));
}

#[test]
fn pidfd_open_fails_for_missing_process() {
    for pid in [0, u32::MAX, 0x7fff_fffe] {
        let error = sys::pidfd_open(pid).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{pid}");
    }
}
