//! Wake-ups and memory of a daemon without clients.

use std::fmt::Write as _;

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

#[test]
fn frees_replaced_rules_without_clients() {
    let rules = |rate: u32| {
        let mut text = "domain: api\nlimits:\n".to_owned();
        for number in 0..5_000 {
            writeln!(
                text,
                "  - {{name: r{number}, match: {{path: /{number}}}, key: [user], rate: {rate}/s}}"
            )
            .unwrap();
        }
        text
    };
    let daemon = Plan::new().rules("api.yaml", &rules(1)).start();
    let kib = || daemon.process.resident_kib();
    let begin = kib();
    for rate in [2, 3] {
        fs::write(daemon.plan.path("rules/api.yaml"), rules(rate)).unwrap();
        daemon.run("reload");
    }
    // A decision thread without requests held those before, and the heap what reading them took: 2.6 times as much.
    eventually("the memory of one set of rules is left", || (kib() < 2 * begin).then_some(()));
}
