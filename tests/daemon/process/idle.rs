//! Wake-ups of a daemon without clients.

use crate::prelude::*;

#[test]
fn wakes_rarely_without_clients() {
    let daemon = daemon();
    // The start, and a scheduler that is late, make a span fail.
    eventually("a span with few wake-ups", || {
        let waits = || ["tidegate", "decide-0"].map(|thread| daemon.process.waits_of(thread));
        let (begin, before) = (read_boot_nanos(), waits());
        sleep(Duration::from_secs(1));
        let after = waits();
        let ticks = (read_boot_nanos() - begin) / 250_000_000;
        let [accepting, deciding] = [after[0] - before[0], after[1] - before[1]];
        // With a tick every 250 ms it was two for each tick, and one of the decision thread.
        (accepting <= ticks && deciding <= ticks / 4).then_some(())
    });
    daemon.greeted().assert_served();
}
