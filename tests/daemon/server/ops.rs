//! The reply to each op.

use serde_json::json;

use super::daemon::{Daemon, Plan, daemon};
use super::msgpack::frame;
use super::wire::{hit, verdict_of};

fn several_rules() -> Daemon {
    let rules = "\
domain: several
limits:
  - {name: wide, key: [], rate: 1/h, burst: 100}
  - {name: narrow, key: [user], rate: 2/h, burst: 4}
  - {name: watched, key: [user], rate: 1/h, burst: 2, mode: shadow}
  - {name: off, key: [user], rate: 1/h, burst: 1, mode: disabled}
";
    Plan::new().rules("several.yaml", rules).start()
}

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

#[test]
fn reply_names_tightest_rule_or_all_on_request() {
    let daemon = several_rules();
    let mut wire = daemon.greeted();
    let reply = wire.ask(&json!([3, 1, "several", [["user", "u1"]], 1, null, {"all": true}]));
    assert_eq!((&reply[3], &reply[6]), (&json!("narrow"), &json!(3)), "{reply}");
    let all: Vec<_> =
        reply[11].as_array().unwrap().iter().map(|e| (e[0].clone(), e[1].clone(), e[3].clone())).collect();
    let expected = [("wide", 100, 99), ("narrow", 4, 3), ("watched", 2, 1)];
    let expected: Vec<_> = expected.iter().map(|(n, l, r)| (json!(n), json!(l), json!(r))).collect();
    assert_eq!(all, expected, "in file order, without the one that is off");
    assert_eq!(wire.ask(&json!([3, 2, "several", [["user", "u1"]]]))[11], json!(null));
}

#[test]
fn cost_by_unit_charges_rules_of_that_unit() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let user = json!([["user", "u1"]]);
    let reply = wire.ask(&json!([3, 1, "api", user, {"tokens": 800}]));
    assert_eq!(
        (verdict_of(&reply), &reply[3]),
        (0, &json!(null)),
        "counted in requests, not judged: {reply}"
    );
    let reply = wire.ask(&json!([3, 2, "api", user, {"tokens": 800, "requests": 2}]));
    assert_eq!(reply[6], 3, "{reply}");
    // The unit is found among many.
    let many: serde_json::Map<_, _> = (0..40).map(|unit| (format!("a{unit:02}"), json!(1))).collect();
    let mut many = serde_json::Value::Object(many);
    many["requests"] = json!(2);
    let reply = wire.ask(&json!([3, 3, "api", user, many]));
    assert_eq!(reply[6], 1, "{reply}");
    let reply = wire.ask(&json!([3, 4, "api", user, 0]));
    assert_eq!((verdict_of(&reply), &reply[6]), (0, &json!(1)), "cost 0 passes and charges nothing: {reply}");
}

#[test]
fn allows_when_no_rule_matches() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    for request in [
        json!([3, 1, "unknown", [["user", "u1"]]]),
        json!([3, 1, "api", []]),
        json!([3, 1, "api", [["user", ""]]]),
        json!([3, 1, "api", [["other", "u1"]]]),
    ] {
        let reply = wire.ask(&request);
        let nil = json!(null);
        assert_eq!((verdict_of(&reply), &reply[3], &reply[8]), (0, &nil, &json!(0)), "{request}: {reply}");
    }
}

#[test]
fn shadow_and_disabled_daemons_allow_all() {
    for (mode, note) in [("shadow", json!(["shadow", "per-user"])), ("disabled", json!(null))] {
        let daemon = Plan::new().settings(&format!("mode: {mode}")).start();
        let mut wire = daemon.greeted();
        let frames: Vec<u8> = (0..6).flat_map(|id| frame(&hit(id, "u1"))).collect();
        wire.send_bytes(&frames);
        wire.end_writing();
        let replies = wire.hear_all();
        assert!(replies.iter().all(|reply| verdict_of(reply) == 0), "{mode}: {replies:?}");
        assert_eq!(replies[5][10], note, "{mode}");
    }
}
