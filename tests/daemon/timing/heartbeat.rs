//! Watchdog messages of a flooded daemon beside those of an idle one.

use super::fairness::{Flood, hit_of};
use crate::prelude::*;
use std::os::unix::net::UnixDatagram;

/// A daemon and the socket of its watchdog messages. They are due every 0.5 s, longer than the interval of self-checks: an idle
/// daemon needs none.
fn watched() -> (Daemon, UnixDatagram) {
    let plan = Plan::new().open_to_all();
    let notify_socket = UnixDatagram::bind(plan.path("notify")).unwrap();
    notify_socket.set_nonblocking(true).unwrap();
    let mut command = plan.command("log");
    command.env("NOTIFY_SOCKET", plan.path("notify")).env("WATCHDOG_USEC", "1000000");
    (plan.start_by(command, " serving "), notify_socket)
}

/// The watchdog messages of a daemon, and the longest gap between them.
#[derive(Default)]
struct Received {
    beats: u32,
    last: Option<u64>,
    longest: u64,
}

impl Received {
    fn listen(&mut self, notify_socket: &UnixDatagram) {
        let mut word = [0; 4_096];
        while let Ok(bytes) = notify_socket.recv(&mut word) {
            if word[..bytes].windows(10).any(|part| part == b"WATCHDOG=1") {
                let now = read_boot_nanos();
                self.beats += 1;
                self.longest = self.longest.max(now - self.last.replace(now).unwrap_or(now));
            }
        }
    }
}

#[test]
fn flood_of_one_user_keeps_heartbeat() {
    needs!(is_root());
    let (flooded, twin) = (watched(), watched());
    let flood = Flood::start(&flooded.0, 200, &hit_of(110));
    let mut received = [Received::default(), Received::default()];
    let begin = read_boot_nanos();
    // Discard earlier messages.
    [&flooded, &twin].into_iter().for_each(|(_, notify_socket)| Received::default().listen(notify_socket));
    while read_boot_nanos() - begin < 1_500_000_000 || received[1].beats < 5 {
        sleep(Duration::from_millis(1));
        for (received, (_, notify_socket)) in received.iter_mut().zip([&flooded, &twin]) {
            received.listen(notify_socket);
        }
    }
    assert!(flood.end() > 100_000, "it was a flood");
    let [here, there] = received;
    eprintln!(
        "{} beats and {} ns apart at most, {} and {} of the idle one",
        here.beats, here.longest, there.beats, there.longest
    );
    assert!(here.beats * 2 >= there.beats, "{} beats beside {}", here.beats, there.beats);
    assert!(here.longest <= there.longest * 8, "{} ns beside {} ns", here.longest, there.longest);
}
