//! Tests one reserve over two daemons: leases on one host cause refusals of other requests on the other.

use super::hosts::hosts;
use crate::prelude::*;

const SLOTS: usize = 10;
/// Limit of one host: half of all slots of both.
const OWN_PART: usize = SLOTS / 2;

const RULES: &str = "\
domain: api
priorities: [critical, other]
shed:
  - pool: web
    fleet: {reserve: 50%, for: critical}
";

/// An application of the pool on one host.
struct Worker {
    wire: Wire,
    held: Vec<u64>,
}

impl Worker {
    fn of(host: &Daemon) -> Worker {
        Worker { wire: host.session(7, json!({"pool": "web", "slots": SLOTS})), held: Vec::new() }
    }

    fn ask(&mut self, priority: &str) -> Value {
        self.wire.ask(&json!([1, 5, "api", [[]], 1, priority]))
    }

    /// Starts as many other leases as allowed; returns their total.
    fn fill(&mut self) -> usize {
        loop {
            let reply = self.ask("other");
            let Some(lease) = reply[9].as_u64() else {
                assert_eq!((verdict_of(&reply), &reply[3]), (2, &json!("web/fleet")), "{reply}");
                return self.held.len();
            };
            self.held.push(lease);
        }
    }

    fn end_all(&mut self) {
        for lease in self.held.drain(..) {
            assert_eq!(self.wire.ask(&json!([2, 6, lease, 0]))[2], true);
        }
    }
}

#[test]
fn reserve_counts_work_of_other_hosts() {
    let mut redis = Redis::start(&[]);
    let hosts = hosts(2, &redis.url(), RULES);
    let [mut busy, mut idle] = [&hosts[0], &hosts[1]].map(Worker::of);
    assert_eq!(busy.fill(), OWN_PART, "its own part, whoever else is there");
    // All but one slot, which an idle host keeps for new requests.
    wait_until("what is not needed over there is lent", || busy.fill() == SLOTS - 1);

    // One lease may start where five slots of its share are free, at any time. Until the others are back both hosts send frequent
    // heartbeats: sums are much younger than between two heartbeats a second apart.
    let mut ages = 0.0;
    for _ in 0..25 {
        let page: Value = serde_json::from_str(&hosts[0].run("fleet --json")).unwrap();
        ages += page["reserves"][0]["elsewhere"]["stale_s"].as_f64().unwrap();
        let here = idle.fill();
        assert!(here <= 1, "{here} here, and {} there: half of all slots is kept back", busy.held.len());
        assert_eq!(busy.fill() + here, SLOTS - 1 + here, "and no more there");
        sleep(Duration::from_millis(100));
    }
    assert!(ages < 25.0 * 0.5 / 2.0, "the ages of 25 sums: {ages} s");
    assert_eq!(verdict_of(&idle.ask("critical")), 0, "it is kept back for this");

    busy.end_all();
    wait_until("its own part is back", || idle.fill() >= OWN_PART);

    // Without Redis each host uses only its own share, without waiting.
    redis.kill();
    idle.end_all();
    for worker in [&mut busy, &mut idle] {
        wait_until("each has its own part, and no more", || {
            let all = worker.fill();
            worker.end_all();
            all == OWN_PART
        });
    }
}
