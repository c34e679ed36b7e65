//! A thousand connections at once: with half a frame, and after a restart.

use super::fairness::{RATIO_MAX, round_trips};
use crate::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CROWD: usize = 1_000;

/// Whether this process may have that many connections; else prints that the test is skipped.
fn may_be_many() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let wanted = CROWD as u64 + 200;
    let raised = Rlimit { current: limit.current.map(|current| current.max(wanted)), ..limit };
    let may = setrlimit(Resource::Nofile, raised).is_ok();
    if !may {
        eprintln!("SKIPPED: fewer than {wanted} descriptors are allowed here");
    }
    may
}

fn plan() -> Plan {
    Plan::new().settings("connections: {max: 2000, per_user: 2000}")
}

#[test]
fn closes_a_thousand_half_frames_and_serves_others() {
    needs!(may_be_many());
    let (daemon, twin) = (plan().start(), plan().start());
    let (mut here, mut there) = (daemon.greeted(), twin.greeted());
    let calm = daemon.process.resident_kib();
    let halves: Vec<Wire> = (0..CROWD)
        .map(|number| {
            let mut wire = daemon.connect();
            // Half of them send HELLO first.
            let mut bytes = if number.is_multiple_of(2) { frame(&hello()) } else { Vec::new() };
            // The longest frame.
            bytes.extend_from_slice(&[0, 0, 0x40, 0, 0x95]);
            wire.send_bytes(&bytes);
            wire
        })
        .collect();
    let [crowded, idle] = round_trips([&mut here, &mut there]);
    let grown = daemon.process.resident_kib().saturating_sub(calm);
    for (number, mut wire) in halves.into_iter().enumerate() {
        assert_eq!(
            wire.hear_all().len(),
            usize::from(number.is_multiple_of(2)),
            "ended without another word"
        );
    }
    here.assert_served();
    assert!(grown <= CROWD as u64 * 24, "{CROWD} halves of frames made the daemon grow by {grown} KiB");
    assert!(crowded < RATIO_MAX * idle, "{crowded} ns, beside {idle} ns");
}

#[test]
fn accepts_a_thousand_simultaneous_reconnects() {
    needs!(may_be_many());
    let queue = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    if queue.trim().parse::<usize>().unwrap() < CROWD {
        eprintln!("SKIPPED: net.core.somaxconn is {}: fewer than {CROWD} connections can wait", queue.trim());
        return;
    }
    let daemon = plan().start();
    let before: Vec<Wire> = (0..CROWD).map(|_| daemon.greeted()).collect();
    daemon.process.signal(libc::SIGKILL);
    let Daemon { mut process, plan } = daemon;
    assert_eq!(process.exit_code(), None);
    for mut wire in before {
        wire.assert_ended();
    }
    let daemon = plan.start();
    // The daemon has accepted none: no connect blocks or fails.
    daemon.process.signal(libc::SIGSTOP);
    let back: Vec<Wire> = (0..CROWD)
        .map(|number| {
            let mut wire = Wire::over(connect_now(&daemon));
            wire.stream
                .write_all(&[frame(&hello()), frame(&hit(1, &format!("u{number}")))].concat())
                .unwrap();
            wire
        })
        .collect();
    daemon.process.signal(libc::SIGCONT);
    let greeted = thread::spawn(move || {
        back.into_iter().map(|mut wire| (wire.hear(), wire.hear())).collect::<Vec<_>>()
    });
    for (welcome, decision) in greeted.join().unwrap() {
        assert_eq!(welcome.unwrap()[0], json!(0));
        assert_eq!(verdict_of(&decision.unwrap()), 0);
    }
    assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
}

/// Connects without blocking: EAGAIN means that the queue is full.
fn connect_now(daemon: &Daemon) -> UnixStream {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(daemon.socket()).unwrap()).expect("there is room in the queue");
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream
}
