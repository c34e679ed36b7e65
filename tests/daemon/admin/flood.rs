//! A flood of new callers at the socket, with little memory for them.

use serde_json::{Value, json};

use super::daemon::Plan;
use super::msgpack::frame;
use super::scrape::scrape;
use super::wire::verdict_of;

const RULES: &str = "\
domain: api
limits:
  - {name: bucket, match: {k: bucket}, key: [user], rate: 5/h}
  - {name: log, match: {k: log}, key: [user], algorithm: sliding_log, rate: 5/h}
  - {name: window, match: {k: window}, key: [user], algorithm: fixed_window, rate: 5/h}
  - {name: login, match: {k: login}, key: [user], rate: 1/h, block: 6h}
";

const MAX_KIB: u64 = 2 * 1_024;

const CALLERS: u64 = 120_000;

/// Requests in one write.
const BATCH: u64 = 40;

fn ask(k: &str, user: &str) -> Value {
    json!([3, 1, "api", [["k", k, "user", user]]])
}

#[test]
fn bounds_memory_and_allows_new_callers_when_full() {
    let plan = Plan::new().rules("api.yaml", RULES).settings("memory: {max: 2MiB}");
    let daemon = plan.start();
    let mut wire = daemon.greeted();
    let mut bystander = daemon.greeted();
    assert_eq!(verdict_of(&wire.ask(&ask("login", "ann"))), 0);
    assert_eq!(verdict_of(&wire.ask(&ask("login", "ann"))), 1);
    let calm = daemon.process.resident_kib();
    let mut most = 0;
    for first in (0..CALLERS).step_by(usize::try_from(BATCH).unwrap()) {
        let asked = (first..first + BATCH).flat_map(|user| {
            let k = ["bucket", "log", "window"][usize::try_from(user % 3).unwrap()];
            frame(&ask(k, &user.to_string()))
        });
        wire.send_bytes(&asked.collect::<Vec<u8>>());
        for _ in 0..BATCH {
            let reply = wire.hear().expect("a reply");
            assert_eq!(verdict_of(&reply), 0, "no request is refused for lack of room: {reply}");
        }
        if first % (100 * BATCH) == 0 {
            most = most.max(daemon.process.resident_kib().saturating_sub(calm));
            bystander.assert_served();
        }
    }
    let metrics = scrape(&daemon);
    let (bytes, max) = (metrics.of("tidegate_memory_bytes"), metrics.of("tidegate_memory_max_bytes"));
    let evicted = metrics.of("tidegate_key_evictions_total");
    eprintln!(
        "{evicted} of {CALLERS} keys evicted, {bytes} of {max} bytes, {most} KiB more resident at most"
    );
    assert_eq!(max, (MAX_KIB * 1_024) as f64);
    assert!(bytes <= max, "{bytes} of {max} bytes");
    // Kept and evicted keys add up to all callers, except keys that were full again.
    assert!(evicted > 0.0 && evicted + metrics.of("tidegate_keys") >= CALLERS as f64, "{evicted}");
    // The tables, and allocator overhead while they grow.
    assert!(most <= MAX_KIB + 2 * 1_024, "{most} KiB more");
    assert_eq!(verdict_of(&wire.ask(&ask("login", "ann"))), 1, "a block is never let go");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}
