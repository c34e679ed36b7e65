//! Tests concurrency limits over daemons that share a Redis: the permits of hosts that exit or restart.

use super::hosts::{LINKED, hosts};
use super::leaving::end;
use crate::prelude::*;

/// The permits of all hosts together.
const MAX: usize = 12;

/// A busy machine replies late: a request without a reply is refused.
const STRICT: &str = "wait: 50ms, on_redis_down: refuse";

fn rules(max: usize, fleet: &str) -> String {
    format!(
        "domain: api\nconcurrency:\n  - {{name: exports, key: [org], max: {max}, scope: fleet, fleet: {{{fleet}}}}}\n"
    )
}

fn acquire(id: u64) -> Value {
    json!([1, id, "api", [["org", "o1"]]])
}

/// Returns the lease if the request may start.
fn begin(wire: &mut Wire) -> Option<u64> {
    let reply = wire.ask(&acquire(1));
    (verdict_of(&reply) == 0).then(|| reply[9].as_u64().unwrap())
}

/// Starts leases until `most` are in progress or the time is over. Returns their number.
fn begin_all(wire: &mut Wire, most: usize, lasts: Duration) -> usize {
    let (began, mut in_progress) = (read_boot_nanos(), 0);
    while in_progress < most && read_boot_nanos() - began < nanos(lasts) {
        match begin(wire) {
            Some(_) => in_progress += 1,
            None => sleep(Duration::from_millis(5)),
        }
    }
    in_progress
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

#[test]
fn permits_of_killed_host_pass_to_others() {
    let redis = Redis::start(&[]);
    let hosts = hosts(3, &redis.url(), &rules(MAX, STRICT));
    let mut first = hosts[0].greeted();
    assert_eq!(begin_all(&mut first, MAX, Duration::from_secs(10)), MAX);
    let mut others: Vec<Wire> = hosts[1..].iter().map(Daemon::greeted).collect();
    assert_eq!(begin_all(&mut others[0], 1, Duration::from_millis(1_500)), 0, "none is left");
    hosts[0].process.signal(9);
    let killed = read_boot_nanos();
    let mut in_progress = 0;
    let mut began = None;
    while in_progress < MAX && read_boot_nanos() - killed < 20_000_000_000 {
        for other in &mut others {
            if begin(other).is_some() {
                began.get_or_insert_with(read_boot_nanos);
                in_progress += 1;
            }
        }
        sleep(Duration::from_millis(5));
    }
    let (began, all) = (began.expect("some begin") - killed, read_boot_nanos() - killed);
    eprintln!("the first after {} ms, all after {} ms", began / 1_000_000, all / 1_000_000);
    assert_eq!(in_progress, MAX);
    // Its members expire four seconds after their last renewal, most of a second before.
    assert!(began >= 1_000_000_000, "before they expired: {began}");
}

#[test]
fn returns_idle_permits_at_exit() {
    // Expired permits are free after more than a second, returned ones sooner if the machine is not too busy.
    let is_sooner = (0..10).any(|_| {
        let redis = Redis::start(&[]);
        let mut hosts = hosts(2, &redis.url(), &rules(MAX, STRICT));
        let mut wire = hosts[0].greeted();
        assert_eq!(begin_all(&mut wire, MAX, Duration::from_secs(20)), MAX);
        // Its session ends with it, and its permits are idle.
        drop(wire);
        end(&mut hosts[..1]);
        let gone = read_boot_nanos();
        assert_eq!(begin_all(&mut hosts[1].greeted(), MAX, Duration::from_secs(20)), MAX);
        let took = read_boot_nanos() - gone;
        eprintln!("all after {} ms", took / 1_000_000);
        took < 1_000_000_000
    });
    assert!(is_sooner, "never returned, or the machine is too busy to tell");
}

#[test]
fn leases_keep_fleet_permits_across_restart() {
    let redis = Redis::start(&[]);
    let mut hosts = hosts(2, &redis.url(), &rules(6, STRICT));
    let second = hosts.pop().unwrap();
    let mut wire = hosts[0].session(7, json!({}));
    assert_eq!(begin_all(&mut wire, 5, Duration::from_secs(10)), 5);
    let gone = read_boot_nanos();
    end(&mut hosts);
    drop(wire);
    let first = hosts.pop().unwrap().plan.start();
    // The session continues; this host receives no request for the rule.
    let _wire = first.session(7, json!({}));
    first.await_log(&[LINKED]);
    let took = read_boot_nanos() - gone;
    let began = begin_all(&mut second.greeted(), 6, Duration::from_secs(7));
    // After a long restart its permits have expired; it last renewed them a while before.
    assert!(began == 1 || took > 1_000_000_000, "five go on at the other host, and {began} here");
}

/// A fleet rate without tokens here refuses nothing that another rule refuses anyway.
#[test]
fn full_concurrency_rule_is_named_beside_a_fleet_rate() {
    let redis = Redis::start(&[]);
    let fleet = "key: [org], scope: fleet, fleet: {wait: 50ms}";
    let rules = format!(
        "domain: api\nlimits:\n  - {{name: rate, rate: 1/h, burst: 100, {fleet}}}\nconcurrency:\n  - {{name: here, key: [org], max: 1}}\n  - {{name: everywhere, max: 9, {fleet}}}\n"
    );
    let host = hosts(1, &redis.url(), &rules).remove(0);
    let mut wire = host.greeted();
    let begun = eventually("a first lease", || begin(&mut wire));
    let named = |wire: &mut Wire, rule: &str| {
        let reply = wire.ask(&acquire(2));
        assert_eq!((verdict_of(&reply), &reply[3]), (1, &json!(rule)), "{reply}");
        reply[8].as_u64().unwrap()
    };
    assert!(named(&mut wire, "here") >= 500_000);
    let peeked = wire.ask(&json!([4, 3, "api", [["org", "o1"]]]));
    assert_eq!(peeked[3], "here", "{peeked}");
    assert_eq!(wire.ask(&json!([2, 4, begun, 0]))[2], true);
    host.run("block everywhere org=o1 --for 1h");
    let retry = named(&mut wire, "everywhere");
    assert!(retry > 3_000_000_000, "{retry}");
}
