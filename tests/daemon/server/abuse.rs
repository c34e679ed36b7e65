//! Misbehaving clients harm only themselves.

use crate::prelude::*;
use std::os::fd::AsFd;

/// Rules without a key, so that odd requests do not grow the tables.
fn keyless() -> Daemon {
    let rules = "\
domain: api
limits:
  - {name: all, key: [], rate: 1000/s}
  - {name: posts, match: {method: POST, path: \"/v1/*\"}, key: [], rate: 10/s}
";
    Plan::new().rules("api.yaml", rules).start()
}

/// Asserts that closed connections leave no memory beyond the allocator's, no descriptors, no panic.
///
/// The allocator keeps the memory of the most connections ever open at once; a leak grows in every round.
fn assert_unchanged(daemon: &Daemon, warm_kib: u64, descriptors: usize, mut more: impl FnMut()) {
    let (mut before, mut grown) = (warm_kib, Vec::new());
    while grown.last().is_none_or(|last| *last > SLACK_KIB) {
        assert!(grown.len() < ROUNDS_MAX, "the daemon grew by {grown:?} KiB");
        more();
        wait_until("their descriptors are closed", || daemon.process.descriptors() <= descriptors);
        let now = daemon.process.resident_kib();
        grown.push(now.saturating_sub(std::mem::replace(&mut before, now)));
    }
    let log = daemon.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn clients_that_exit_leak_nothing() {
    let daemon = keyless();
    let mut bystander = daemon.greeted();
    let request = frame(&json!([3, 2, "api", [["user", "u1"]]]));
    let mut visit = |number: usize| {
        let mut wire = daemon.connect();
        match number % 6 {
            0 => {}
            1 => wire.send_bytes(&[0]),
            2 => wire.send(&hello()),
            // With a request in progress and its reply unread.
            3 => wire.send_bytes(&[frame(&hello()), request.clone()].concat()),
            // Which the daemon rejects.
            4 => wire.send_bytes(&[frame(&hello()), framed(&[0x91, 0xc1])].concat()),
            _ => wire.send_bytes(&[frame(&hello()), request[..9].to_vec()].concat()),
        }
        drop(wire);
        if number.is_multiple_of(50) {
            bystander.assert_served();
        }
    };
    (0..500).for_each(&mut visit);
    let (warm, descriptors) = (daemon.process.resident_kib(), daemon.process.descriptors());
    assert_unchanged(&daemon, warm, descriptors, || (0..1_000).for_each(&mut visit));
}

#[test]
fn closes_descriptors_passed_by_clients() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let daemon = keyless();
    let mut wire = daemon.greeted();
    let ping = frame(&json!([8, 5]));
    let (mut here, sent) = UnixStream::pair().unwrap();
    for _ in 0..50 {
        let sent = [sent.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&sent)));
        let parts = [std::io::IoSlice::new(&ping)];
        sendmsg(&wire.stream, &parts, &mut ancillary, SendFlags::empty()).unwrap();
        assert_eq!(wire.hear(), Some(json!([2, 5, true])));
    }
    // The socket ends when all copies of the passed descriptor are closed. The daemon's descriptors cannot be
    // counted instead: it serves before its other threads have opened all of theirs.
    drop(sent);
    here.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(here.read(&mut [0]).expect("the daemon has closed every copy"), 0);
    wire.assert_served();
}

/// Memory that the allocator may keep after thousands of connections: 1 KiB per connection of a round.
const SLACK_KIB: u64 = 1_024;

/// Rounds in which more connections may be open at once than before.
const ROUNDS_MAX: usize = 4;
