//! Leases over the socket: grants and ends.

use super::work::{acquire, daemon, free_permits, lease_of};
use crate::admin::scrape::scrape;
use crate::prelude::*;

#[test]
fn lease_holds_permit_until_released() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let first = wire.ask(&acquire(1, "u"));
    assert_eq!(json!([first[3], first[4], first[5], first[6]]), json!(["at-once", 2, 0, 1]));
    let (first, second) = (lease_of(&first), lease_of(&wire.ask(&acquire(2, "u"))));
    assert_ne!(first, second);
    let refused = wire.ask(&acquire(3, "u"));
    assert_eq!((verdict_of(&refused), &refused[3], &refused[6]), (1, &json!("at-once"), &json!(0)));
    assert!(refused[8].as_u64().unwrap() > 0 && refused[9].is_null(), "a hint and no lease: {refused}");
    assert_eq!(wire.ask(&acquire(4, "u"))[8], refused[8], "the same hint for the same caller");
    assert_eq!(wire.ask(&json!([2, 5, first, 0])), json!([2, 5, true]));
    assert_eq!(wire.ask(&json!([2, 6, first, 0])), json!([2, 6, false]), "a second time: nothing changes");
    assert_eq!(wire.ask(&json!([6, 7, first])), json!([2, 7, false]));
    assert_eq!(free_permits(&mut wire, "u"), 1);
    // Without an id there is no reply: the next is the ping's.
    wire.send(&json!([2, null, second, 2]));
    wire.send(&json!([2, null, second, 2]));
    wire.assert_served();
    assert_eq!(free_permits(&mut wire, "u"), 2);
    for never in [0, 1, 4_711, i64::MAX.unsigned_abs()] {
        assert_eq!(wire.ask(&json!([2, 8, never])), json!([2, 8, false]));
        assert_eq!(wire.ask(&json!([6, 9, never])), json!([2, 9, false]));
    }
}

#[test]
fn bounds_leases_of_one_session() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let free = |id: u64| json!([1, id, "work", [["other", "x"]]]);
    let leases: Vec<u64> = (0..1_024).map(|id| lease_of(&wire.ask(&free(id)))).collect();
    for id in [2_000, 2_001] {
        let reply = wire.ask(&free(id));
        assert_eq!(error_of(&reply), (Some(id), 7), "{reply}");
    }
    // Other ops need no lease, and another session has its own bound.
    assert_eq!(verdict_of(&wire.ask(&json!([3, 3_000, "work", [["user", "u"]]]))), 0);
    lease_of(&daemon.greeted().ask(&free(1)));
    assert_eq!(wire.ask(&json!([2, 1, leases[700]])), json!([2, 1, true]));
    lease_of(&wire.ask(&free(2_002)));
    assert_eq!(error_of(&wire.ask(&free(2_003))), (Some(2_003), 7));
}

#[test]
fn accepts_signals_of_own_pool_only() {
    let daemon = daemon();
    let mut wire = daemon.session(1, json!({"pool": "web"}));
    assert_eq!(wire.ask(&json!([7, 1, "web", "loop_lag", 400])), json!([2, 1, true]));
    let reply = wire.ask(&json!([7, 2, "other", "loop_lag", 400]));
    assert_eq!(error_of(&reply), (Some(2), 11), "{reply}");
    for silent in ["web", "other"] {
        wire.send(&json!([7, null, silent, "loop_lag", 400]));
        wire.assert_served();
    }
    let mut nowhere = daemon.greeted();
    assert_eq!(nowhere.ask(&json!([7, 1, "default", "loop_lag", 0])), json!([2, 1, true]));
}

#[test]
fn applies_requests_sent_before_hangup() {
    let daemon = daemon();
    let mut wire = daemon.session(7, json!({}));
    let lease = lease_of(&wire.ask(&acquire(1, "u")));
    daemon.process.signal(libc::SIGSTOP);
    // More requests than one batch, whose replies have no reader; then the release.
    (0..200).for_each(|id| wire.send(&json!([8, id])));
    wire.send(&json!([1, 300, "work", [["user", "u"]], 1, null, {"missed": {"timeout": 3}}]));
    wire.send(&json!([2, null, lease, 2]));
    // The same session, which stays open.
    let mut other = daemon.connect();
    drop(wire);
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(other.ask(&hello_of(7, json!({})))[0], 0);
    wait_until("both places are free", || free_permits(&mut other, "u") == 2);
    assert_eq!(scrape(&daemon).sum(&["tidegate_missed_total"]), 0.0, "the client reports it again");
}
