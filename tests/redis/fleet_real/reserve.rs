//! Tests one reserve over two daemons: a host uses the idle slots of the other, which gets them back. Simulations test the
//! bound of both together.

use super::hosts::hosts;
use crate::prelude::*;

const SLOTS: usize = 10;

const RULES: &str = "\
domain: api
priorities: [critical, other]
shed:
  - pool: web
    fleet: {reserve: 50%, for: critical}
";

/// Starts leases of the lower priority until one is refused; returns how many are in progress.
fn fill((wire, held): &mut (Wire, Vec<u64>)) -> usize {
    loop {
        let reply = wire.ask(&json!([1, 5, "api", [[]], 1, "other"]));
        let Some(lease) = reply[9].as_u64() else {
            assert_eq!((verdict_of(&reply), &reply[3]), (2, &json!("web/fleet")), "{reply}");
            return held.len();
        };
        held.push(lease);
    }
}

#[test]
fn idle_slots_are_lent_to_the_other_host_and_return() {
    let redis = Redis::start(&[]);
    let hosts = hosts(2, &redis.url(), RULES);
    let [mut busy, mut idle] =
        [0, 1].map(|at: usize| (hosts[at].session(7, json!({"pool": "web", "slots": SLOTS})), Vec::new()));
    assert_eq!(fill(&mut busy), SLOTS / 2, "its own part, whoever else is there");
    // All but one slot, which an idle host keeps for new requests.
    wait_until("idle slots are lent", || fill(&mut busy) == SLOTS - 1);
    // Until they are back both hosts send frequent heartbeats: sums are much younger than between two a second apart.
    let age = |_| {
        sleep(Duration::from_millis(100));
        hosts[0].json("fleet")["reserves"][0]["elsewhere"]["stale_s"].as_f64().unwrap()
    };
    let ages: f64 = (0..10).map(age).sum();
    assert!(ages < 10.0 * 0.5 / 2.0, "the ages of 10 sums: {ages} s");
    for lease in busy.1.drain(..) {
        assert_eq!(busy.0.ask(&json!([2, 6, lease, 0]))[2], true);
    }
    wait_until("its own part is back", || fill(&mut idle) >= SLOTS / 2);
}
