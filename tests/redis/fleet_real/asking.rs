//! Requests that wait for a call.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tidegate::clock::read_boot_nanos;

use super::daemon::eventually;
use super::hosts::{ask_all, hosts, metric, passed, rules};
use super::redis_server::Redis;
use super::wire::{Wire, hit, verdict_of};

const BURST: u32 = 30;

/// How many pass of three hosts that are asked at once, for as long as it takes until the budget is used, and then some. Whose
/// call a busy machine does not answer in time is refused, and after five of them nobody is called for a while.
fn three(fleet: &str) -> usize {
    let redis = Redis::start(&[]);
    let hosts = hosts(3, &redis.url(), &rules("30/h", BURST, fleet));
    let (mut offered, mut all) = (0, 0);
    let mut ask = |lasts: Duration| {
        let asked = ask_all(&hosts, 4, Duration::from_millis(5), lasts);
        offered += asked.iter().map(Vec::len).sum::<usize>();
        all += passed(&asked).len();
        eprintln!("{fleet}: {offered} asked, {all} passed");
        all
    };
    for _ in 0..15 {
        if ask(Duration::from_secs(2)) >= BURST as usize {
            break;
        }
    }
    ask(Duration::from_millis(500))
}

#[test]
fn admits_exact_budget_when_hosts_check_on_miss() {
    assert_eq!(three("on_miss: ask, wait: 50ms, on_redis_down: refuse"), BURST as usize);
}

#[test]
fn admits_exact_budget_in_exact_mode() {
    assert_eq!(three("mode: exact, wait: 50ms, on_redis_down: refuse"), BURST as usize);
}

/// By which request each answer is.
fn id_of(reply: &Value) -> u64 {
    reply[1].as_u64().unwrap()
}

#[test]
fn answers_local_requests_before_pending_one() {
    let redis = Redis::start(&[]);
    let hosts = hosts(1, &redis.url(), &rules("30/h", BURST, "mode: exact"));
    let mut wire = Wire::greeted(&hosts[0].socket());
    redis.signal(Signal::STOP);
    wire.send(&hit(1, "u1"));
    (2..6).for_each(|id| wire.send(&serde_json::json!([3, id, "api", [["job", "j"]]])));
    let order: Vec<u64> = (1..6).map(|_| id_of(&wire.hear().expect("an answer"))).collect();
    redis.signal(Signal::CONT);
    assert_eq!(order, [2, 3, 4, 5, 1]);
}

/// The shortest pause before a probe: half of the first pause.
const TRIED_AFTER: Duration = Duration::from_millis(50);

#[test]
fn silent_redis_delays_at_most_five_requests() {
    let redis = Redis::start(&[]);
    let hosts = hosts(1, &redis.url(), &rules("1000/s", 1_000, "mode: exact"));
    let mut wire = Wire::greeted(&hosts[0].socket());
    redis.signal(Signal::STOP);
    let start = read_boot_nanos();
    for id in 0..60 {
        wire.send(&hit(id, "u1"));
        assert_eq!(verdict_of(&wire.hear().expect("an answer")), 0, "what one host has of it is admitted");
    }
    let lasted = Duration::from_nanos(read_boot_nanos() - start);
    redis.signal(Signal::CONT);
    let late = || metric(&hosts[0], "tidegate_fleet_asked_total{outcome=\"late\"}");
    // Five, and the probes.
    let tries = usize::try_from(lasted.as_millis() / TRIED_AFTER.as_millis()).unwrap();
    eventually("five have waited", || (late() >= 5.0).then_some(()));
    assert!(late() <= (5 + tries) as f64, "{} waited in {lasted:?}", late());
}
