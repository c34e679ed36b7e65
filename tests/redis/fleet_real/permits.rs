//! Tests concurrency limits over daemons that share a Redis: the permits of hosts that exit or restart.

use super::hosts::{LINKED, hosts};
use super::leaving::end;
use crate::prelude::*;

/// A busy machine replies late: a request without a reply is refused.
fn rules(max: u64) -> String {
    format!(
        "domain: api\nconcurrency:\n  - {{name: exports, key: [org], max: {max}, scope: fleet, fleet: {{wait: 50ms, on_redis_down: refuse}}}}\n"
    )
}

/// Tries to start this many leases; returns how many may start.
fn begin(wire: &mut Wire, tries: u64) -> u64 {
    let may_start = |id: &u64| verdict_of(&wire.ask(&json!([1, id, "api", [["org", "o1"]]]))) == 0;
    (0..tries).filter(may_start).count() as u64
}

/// Starts leases until this many are in progress.
fn begin_all(wire: &mut Wire, all: u64) {
    let mut in_progress = 0;
    wait_until("leases start", || {
        in_progress += begin(wire, all - in_progress);
        in_progress == all
    });
}

#[test]
fn returns_idle_permits_at_exit() {
    let redis = Redis::start(&[]);
    let mut hosts = hosts(2, &redis.url(), &rules(12));
    let mut wire = hosts[0].greeted();
    begin_all(&mut wire, 12);
    assert_eq!(begin(&mut hosts[1].greeted(), 3), 0, "none is left");
    // The session ends with its daemon, and its permits are idle then.
    end(&mut hosts[..1]);
    // The set has its mark of the last command left.
    assert_eq!(redis.say("EVAL return(redis.call('ZCARD',redis.call('KEYS','tg:*:m:*')[1])) 0"), ":1\r\n");
}

#[test]
fn leases_keep_fleet_permits_across_restart() {
    let redis = Redis::start(&[]);
    let mut hosts = hosts(2, &redis.url(), &rules(6));
    let second = hosts.pop().unwrap();
    let mut wire = hosts[0].session(7, json!({}));
    begin_all(&mut wire, 5);
    let gone = read_boot_nanos();
    end(&mut hosts);
    drop(wire);
    let first = hosts.pop().unwrap().plan.start();
    // The session continues; this host receives no request for the rule.
    let _wire = first.session(7, json!({}));
    first.await_log(&[LINKED]);
    let took = read_boot_nanos() - gone;
    let (mut wire, mut began) = (second.greeted(), 0);
    (0..100).for_each(|_| {
        began += begin(&mut wire, 6);
        sleep(Duration::from_millis(70));
    });
    // After a long restart its permits have expired; it last renewed them a while before.
    assert!(began == 1 || took > 1_000_000_000, "five go on at the other host, and {began} here");
}
