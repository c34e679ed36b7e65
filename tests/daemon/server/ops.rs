//! The reply to HIT.

use serde_json::json;

use super::daemon::daemon;
use super::wire::{hit, verdict_of};

#[test]
fn hit_charges_until_burst_spent_with_retry_after() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    for left in (0..5).rev() {
        let reply = wire.ask(&hit(10 + left, "u1"));
        let head = json!([reply[0], reply[1], reply[2], reply[3], reply[4], reply[5], reply[6]]);
        let window_us = 5 * 3_600_000_000u64;
        assert_eq!(head, json!([1, 10 + left, 0, "per-user", 5, window_us, left]), "{reply}");
        assert_eq!((&reply[8], &reply[9]), (&json!(0), &json!(null)), "no wait and no lease: {reply}");
        assert_eq!(reply.as_array().unwrap().len(), 13, "written whole");
    }
    let refused = wire.ask(&hit(20, "u1"));
    assert_eq!((verdict_of(&refused), &refused[3], &refused[6]), (1, &json!("per-user"), &json!(0)));
    let retry = refused[8].as_u64().unwrap();
    assert!((1..=3_600_000_000).contains(&retry), "{refused}");
    let extra = &refused[12];
    assert_eq!((&extra["help"], &extra["rate"]), (&json!("https://example.com/limits"), &json!("1/h")));
    // Other users are not charged.
    assert_eq!(verdict_of(&wire.ask(&hit(21, "u2"))), 0);
    // Connections share the state of a user.
    assert_eq!(verdict_of(&daemon.greeted().ask(&hit(22, "u1"))), 1);
}
