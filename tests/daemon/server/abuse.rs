//! Misbehaving clients harm only themselves.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};
use tidegate::clock::read_boot_nanos;

use super::daemon::{Daemon, Plan, eventually};
use super::frames::bytes_of;
use super::msgpack::{frame, framed};
use super::wire::{PATIENCE, Wire, hello};

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

/// SplitMix64 with a seed that the test prints, to repeat a failure.
struct Chance(u64);

impl Chance {
    fn seeded() -> Chance {
        let seed = std::env::var("TIDEGATE_TEST_SEED")
            .map_or_else(|_| read_boot_nanos(), |seed| seed.parse().unwrap());
        eprintln!("TIDEGATE_TEST_SEED={seed}");
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// Random bytes, mostly framed, since few would pass the length check otherwise.
fn random(chance: &mut Chance) -> Vec<u8> {
    let length = chance.below(80);
    let mut bytes = chance.bytes(length);
    match chance.below(8) {
        0 => bytes,
        // An array of a known op and an id, then random bytes.
        1..=4 => {
            let op = u8::try_from(chance.below(10)).unwrap();
            bytes.splice(0..0, [0x93 + op % 5, op, 7]);
            framed(&bytes)
        }
        _ => framed(&bytes),
    }
}

/// A valid frame with a few bytes changed, cut, doubled or swapped.
fn mutated(good: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = good[chance.below(good.len())].clone();
    for _ in 0..=chance.below(3) {
        let at = chance.below(bytes.len());
        match chance.below(5) {
            0 => bytes[at] = chance.next().to_le_bytes()[0],
            1 => bytes[at] ^= 1 << chance.below(8),
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, chance.next().to_le_bytes()[0]),
            _ => {
                let other = chance.below(bytes.len());
                bytes.swap(at, other);
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    // Most keep a valid length, so that the error is inside.
    if chance.below(4) > 0 && bytes.len() > 5 { framed(&bytes[4..]) } else { bytes }
}

fn good_requests() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/good.json");
    let vectors: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let requests = vectors.iter().filter(|vector| vector["direction"] == "request");
    let requests: Vec<_> = requests.map(|vector| bytes_of(vector["hex"].as_str().unwrap())).collect();
    assert!(requests.len() > 20, "{}", requests.len());
    requests
}

/// Sends frames to the daemon, each on a new connection, and expects complete replies or none, and an end.
fn throw(daemon: &Daemon, frames: usize, bystander: &mut Wire, mut make: impl FnMut() -> Vec<u8>) {
    for number in 0..frames {
        let bytes = make();
        let mut wire = daemon.connect();
        // Some precede HELLO.
        if number % 16 > 0 {
            wire.send(&hello());
        }
        wire.send_bytes(&bytes);
        wire.end_writing();
        for reply in wire.hear_all() {
            assert!(reply[0].as_u64().unwrap() <= 3, "{bytes:02x?}: {reply}");
            assert_ne!(reply[2], 10, "internal: {bytes:02x?}: {reply}");
        }
        if number % 256 == 0 {
            bystander.assert_served();
        }
    }
    bystander.assert_served();
}

#[test]
fn random_and_mutated_frames_leak_nothing() {
    let (daemon, mut chance, good) = (keyless(), Chance::seeded(), good_requests());
    let mut bystander = daemon.greeted();
    let mut is_random = false;
    let mut make = || {
        is_random = !is_random;
        if is_random { random(&mut chance) } else { mutated(&good, &mut chance) }
    };
    // The nightly run sets `SEEDS`.
    let frames = if std::env::var_os("SEEDS").is_some() { 10_000 } else { 2_500 };
    throw(&daemon, frames / 5, &mut bystander, &mut make);
    let (warm, descriptors) = (daemon.process.resident_kib(), daemon.process.descriptors());
    assert_unchanged(&daemon, warm, descriptors, || throw(&daemon, frames, &mut bystander, &mut make));
}

/// Asserts that closed connections leave no memory beyond the allocator's, no descriptors, no panic.
///
/// The allocator keeps the memory of the most connections ever open at once; a leak grows in every round.
fn assert_unchanged(daemon: &Daemon, warm_kib: u64, descriptors: usize, mut more: impl FnMut()) {
    let (mut before, mut grown) = (warm_kib, Vec::new());
    while grown.last().is_none_or(|last| *last > SLACK_KIB) {
        assert!(grown.len() < ROUNDS_MAX, "the daemon grew by {grown:?} KiB");
        more();
        eventually("their descriptors are closed", || {
            (daemon.process.descriptors() <= descriptors).then_some(())
        });
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
        match number % 5 {
            0 => {}
            1 => wire.send_bytes(&[0]),
            2 => wire.send(&hello()),
            // With a request in progress and its reply unread.
            3 => wire.send_bytes(&[frame(&hello()), request.clone()].concat()),
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

/// Memory that the allocator may keep after thousands of connections: 100 B per frame of the nightly run.
const SLACK_KIB: u64 = 1_024;

/// Rounds in which more connections may be open at once than before.
const ROUNDS_MAX: usize = 4;
