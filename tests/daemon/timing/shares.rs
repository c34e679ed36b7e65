//! Connections that send without pause get equal shares of a thread; one key costs no more than many.

use crate::prelude::*;
use std::io::{Error, ErrorKind};

/// A connection that always has pending requests.
struct Busy {
    wire: Wire,
    block: Vec<u8>,
    written: usize,
    /// The remaining writes of the block.
    times: u64,
    /// An incomplete reply.
    unread: Vec<u8>,
    replies: u64,
}

impl Busy {
    /// Sends requests of these users repeatedly.
    fn start(daemon: &Daemon, users: impl Iterator<Item = String>) -> Busy {
        let wire = daemon.greeted();
        wire.stream.set_nonblocking(true).unwrap();
        let block = users.flat_map(|user| frame(&hit(7, &user))).collect();
        Busy { wire, block, written: 0, times: u64::MAX, unread: Vec::new(), replies: 0 }
    }

    /// Reads and writes as far as possible. Returns whether anything moved.
    fn go_on(&mut self) -> bool {
        let mut part = [0; 65_536];
        let read = match self.wire.stream.read(&mut part) {
            Ok(count) => {
                self.count(&part[..count]);
                count
            }
            Err(error) => waits(&error),
        };
        if self.times == 0 {
            return read > 0;
        }
        let written = match self.wire.stream.write(&self.block[self.written..]) {
            Ok(count) => {
                self.written = (self.written + count) % self.block.len();
                self.times -= u64::from(self.written == 0);
                count
            }
            Err(error) => waits(&error),
        };
        read + written > 0
    }

    fn count(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(length) = self.unread[at..].first_chunk::<4>() {
            let end = at + 4 + u32::from_be_bytes(*length) as usize;
            if end > self.unread.len() {
                break;
            }
            (at, self.replies) = (end, self.replies + 1);
        }
        self.unread.drain(..at);
    }
}

fn waits(error: &Error) -> usize {
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    0
}

/// Drives all clients. If none can move, yields the CPU to the daemon.
fn go_on(clients: &mut [Busy]) {
    let moved = clients.iter_mut().filter_map(|client| client.go_on().then_some(())).count();
    if moved == 0 {
        sleep(Duration::from_micros(50));
    }
}

/// A daemon with a rule that refuses none of these requests.
fn generous(threads: u32) -> Daemon {
    let rules = "domain: api\nlimits:\n  - {name: many, key: [user], rate: 1000000/s, burst: 1000000000}\n";
    Plan::new().rules("api.yaml", rules).threads(threads).start()
}

#[test]
fn serves_eight_flooding_connections_and_a_ninth_in_turn() {
    let daemon = generous(1);
    let mut floods: Vec<Busy> =
        (0..8).map(|flood| Busy::start(&daemon, (0..500).map(|_| format!("u{flood}")))).collect();
    let mut ninth = daemon.greeted();
    ninth.stream.set_nonblocking(true).unwrap();
    let request = frame(&hit(1, "quiet"));
    let begin = read_boot_nanos();
    let served = |floods: &[Busy]| {
        let replies: Vec<u64> = floods.iter().map(|flood| flood.replies).collect();
        assert!(read_boot_nanos() - begin < PATIENCE.as_nanos() as u64, "{replies:?}");
        replies
    };
    // Until all are busy.
    while served(&floods).iter().any(|replies| *replies < 500) {
        go_on(&mut floods);
    }
    floods.iter_mut().for_each(|flood| flood.replies = 0);
    // Waits are measured in replies to the others, so that they do not depend on the speed of the machine.
    let (mut waits, mut asked_at) = (Vec::new(), None);
    while waits.len() < 40 {
        let at = *asked_at.get_or_insert_with(|| {
            ninth.stream.write_all(&request).unwrap();
            served(&floods).iter().sum::<u64>()
        });
        go_on(&mut floods);
        if matches!(ninth.stream.read(&mut [0; 4_096]), Ok(1..)) {
            waits.push(served(&floods).iter().sum::<u64>() - at);
            asked_at = None;
        }
    }
    let replies = served(&floods);
    waits.sort_unstable();
    eprintln!("replies to eight floods: {replies:?}; while the ninth waited: {waits:?}");
    let (fewest, most) = (replies.iter().min().unwrap(), replies.iter().max().unwrap());
    assert!(*most <= fewest * 2, "{replies:?}");
    // A buffer of each, two batches of 64, precedes it; replies in transit count too.
    assert!(waits[waits.len() * 9 / 10] <= 2 * 8 * 128, "{waits:?}");
}

/// How often the decision threads have waited so far, for a lock or for work.
fn waits_of_decisions(daemon: &Daemon) -> u64 {
    ["decide-0", "decide-1"].iter().map(|thread| daemon.process.waits_of(thread)).sum()
}

#[test]
fn decides_for_one_key_as_fast_as_for_many() {
    let daemon = generous(2);
    let one = |_| Busy::start(&daemon, (0..500).map(|_| "hot".to_owned()));
    let many = |client: usize| Busy::start(&daemon, (0..500).map(move |user| format!("u{client}-{user}")));
    let mut sets: [Vec<Busy>; 2] = [(0..8).map(one).collect(), (0..8).map(many).collect()];
    let mut used = [[0; 2]; 2];
    for round in 0..11 {
        for (set, [ticks, waits]) in sets.iter_mut().zip(&mut used) {
            let (ticks_before, waits_before) = (daemon.process.cpu_ticks(), waits_of_decisions(&daemon));
            // Finish one set before the other.
            set.iter_mut().for_each(|client| (client.times, client.replies) = (1, 0));
            while set.iter().any(|client| client.replies < 500) {
                go_on(set);
            }
            // The first round warms up.
            if round > 0 {
                *ticks += daemon.process.cpu_ticks() - ticks_before;
                *waits += waits_of_decisions(&daemon) - waits_before;
            }
        }
    }
    // 40 000 requests each, by CPU time and waits, which are independent of the load of the machine.
    let [[hot, hot_waits], [spread, waits]] = used;
    eprintln!(
        "{hot} ticks and {hot_waits} waits for one key, {spread} ticks and {waits} waits for 4 000 keys"
    );
    assert!(hot * 6 <= spread * 10 + 10, "{hot} ticks beside {spread}");
    assert!(hot_waits <= waits + 5_000, "{hot_waits} waits beside {waits}");
}
