//! Tests concurrency limits over daemons that share a Redis: never above the maximum while hosts stop or
//! enter an outage.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::clock::read_boot_nanos;

use super::daemon::{Daemon, eventually};
use super::hosts::{LINKED, hosts, plan, unanswered_checks};
use super::leaving::end;
use super::redis_server::Redis;
use super::wire::{Wire, verdict_of};

/// The permits of all hosts together.
const MAX: usize = 12;

/// A busy machine replies late: a request without a reply is refused.
const STRICT: &str = "wait: 50ms, on_redis_down: refuse";

pub(super) fn rules(max: usize, fleet: &str) -> String {
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
pub(super) fn begin_all(wire: &mut Wire, most: usize, lasts: Duration) -> usize {
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
fn fleet_concurrency_never_exceeds_maximum() {
    let redis = Redis::start(&[]);
    let hosts = hosts(3, &redis.url(), &rules(MAX, STRICT));
    let (held, begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let until = read_boot_nanos() + 4_000_000_000;
    let work = |host: &Daemon| {
        let mut wire = host.greeted();
        while read_boot_nanos() < until {
            if let Some(lease) = begin(&mut wire) {
                // Counted within the time for which the daemon counts the lease.
                let at_once = held.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(at_once <= MAX, "{at_once} at once");
                sleep(Duration::from_millis(60));
                held.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(wire.ask(&json!([2, 2, lease, 0]))[2], true, "it is held");
                begun.fetch_add(1, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(25));
        }
    };
    std::thread::scope(|threads| {
        // Half as many again as there are permits.
        for host in hosts.iter().cycle().take(MAX * 3 / 2) {
            threads.spawn(move || work(host));
        }
    });
    // The simulation tests utilization: a busy machine replies late.
    assert!(begun.into_inner() > 0);
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

#[test]
fn late_host_learns_permits_in_use() {
    let redis = Redis::start(&[]);
    let first = hosts(1, &redis.url(), &rules(MAX, STRICT));
    let mut wire = first[0].greeted();
    assert_eq!(begin_all(&mut wire, MAX - 2, Duration::from_secs(10)), MAX - 2);
    let later = plan(&redis.url(), &rules(MAX, STRICT), "").start();
    later.await_log(&[LINKED]);
    let mut other = later.greeted();
    // Idle permits return after a second.
    assert_eq!(begin_all(&mut other, 2, Duration::from_secs(10)), 2);
    assert_eq!(begin_all(&mut other, 1, Duration::from_secs(1)), 0, "no more than that");
    // Permits of ended leases move here.
    drop(wire);
    assert_eq!(begin_all(&mut other, MAX - 2, Duration::from_secs(10)), MAX - 2);
}

/// Returns the permits that Redis counts for the only key.
fn counted(redis: &Redis) -> usize {
    let reply = redis.say("EVAL return(redis.call('ZCARD',redis.call('KEYS','tg:*:m:*')[1])) 0");
    reply.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{reply}"))
}

/// Requests leases from host after host, each once Redis has recorded the end elsewhere; counts refusals.
fn one_after_another(redis: &Redis, wires: &mut [Wire], most: usize, rounds: usize) -> usize {
    let (mut held, mut refused) = (std::collections::VecDeque::new(), 0);
    for round in 0..rounds {
        if held.len() == most {
            let (host, lease): (usize, u64) = held.pop_front().unwrap();
            assert_eq!(wires[host].ask(&json!([2, 2, lease, 0]))[2], true, "it is held");
            eventually("Redis knows of the end", || (counted(redis) < most).then_some(()));
        }
        let host = round * 7 % wires.len();
        match begin(&mut wires[host]) {
            Some(lease) => held.push_back((host, lease)),
            None => refused += 1,
        }
    }
    held.into_iter().for_each(|(host, lease)| drop(wires[host].ask(&json!([2, 2, lease, 0]))));
    refused
}

#[test]
fn grants_last_free_permit_to_any_host() {
    let redis = Redis::start(&[]);
    // Uses the longest wait: requests without a reply in time are refused.
    let hosts = hosts(3, &redis.url(), &rules(3, STRICT));
    let mut wires: Vec<Wire> = hosts.iter().map(|host| Wire::greeted(&host.socket())).collect();
    // First one lease per host, then each time the permit freed elsewhere.
    let refused = one_after_another(&redis, &mut wires, 3, 60);
    eprintln!("{refused} of 60 refused although a permit was free");
    // A busy machine replies late, and five late replies pause remote checks for a while. The metrics follow.
    if refused > 0 {
        eventually("a check without a reply", || (unanswered_checks(&hosts) > 0.0).then_some(()));
    }
    // No fourth lease starts.
    let held: usize = wires.iter_mut().map(|wire| begin_all(wire, 1, Duration::from_secs(10))).sum();
    assert_eq!(held, 3);
    assert!(wires.iter_mut().all(|wire| begin(wire).is_none()));
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
