//! Tests pending requests of one connection: replies, order and payments.

use super::hosts::{hosts, lost_replies, metric, rules};
use super::leaving::left;
use super::proxy::RedisProxy;
use crate::prelude::*;
use rustix::process::Signal;
use std::sync::atomic::Ordering;

const ALLOW: u64 = 0;
const LIMIT: u64 = 1;

/// Without refill during a test; a request without a reply in time is allowed and charged.
const LENIENT: &str = "mode: exact, wait: 50ms, on_redis_down: allow";

fn await_left(redis: &Redis, wanted: i64) {
    wait_until(&format!("{wanted} tokens are left; now {}", left(redis)), || left(redis) == wanted);
}

/// Waits for this value and checks that it stays longer than any batch takes. On a machine that stalls, a host closes a
/// connection without a reply for 250 ms, and the charge of a lost reply is lost: then less may be left.
fn stays_left(redis: &Redis, host: &Daemon, wanted: i64) {
    wait_until(&format!("{wanted} tokens are left; now {}", left(redis)), || {
        let is_lost = left(redis) < wanted && lost_replies(std::slice::from_ref(host)) > 0;
        is_lost || left(redis) == wanted
    });
    let settled = left(redis);
    sleep(Duration::from_millis(700));
    assert_eq!(left(redis), settled, "what is left has changed again");
}

/// Starts one host behind a proxy that a test controls; a first request of `u1` has passed.
fn one_host(fleet: &str) -> (Redis, RedisProxy, Daemon) {
    let redis = Redis::start(&[]);
    let proxy = RedisProxy::to(&redis.socket());
    let host = hosts(1, &proxy.url(), &rules("1/day", 30, fleet)).remove(0);
    wait_until("a command is answered in time", || {
        let passes = verdict_of(&host.greeted().ask(&hit(1, "u0"))) == ALLOW;
        passes && redis.say("KEYS tg:*:q:*").len() > 4
    });
    redis.order("FLUSHALL");
    (redis, proxy, host)
}

fn id_of(reply: &Value) -> u64 {
    reply[1].as_u64().unwrap()
}

#[test]
fn bounds_pending_requests_of_one_connection() {
    let fleet = "mode: exact, wait: 50ms, on_redis_down: refuse";
    // On a busy machine the first may time out before the last is read; then requests do not wait for a
    // while.
    let is_seen = (0..20).any(|_| {
        let redis = Redis::start(&[]);
        let host = hosts(1, &redis.url(), &rules("1/day", 30, fleet)).remove(0);
        let mut wire = host.greeted();
        redis.signal(Signal::STOP);
        // Enough users that no bucket exceeds its capacity.
        let all: Vec<u8> = (1..=513).flat_map(|id| frame(&hit(id, &format!("u{id}")))).collect();
        wire.send_bytes(&all);
        let replies: Vec<Value> = (0..513).map(|_| wire.hear().unwrap()).collect();
        redis.signal(Signal::CONT);
        assert!(replies.iter().all(|reply| verdict_of(reply) == LIMIT));
        let declined = metric(&host, "tidegate_waits_declined_total{reason=\"connection\"}");
        // Each pending one waited behind fewer than 512.
        assert!(declined <= 1.0, "{declined} of 513 were not let wait");
        if declined > 0.0 {
            host.await_log(&["WARN", "too many requests wait for remote checks"]);
        }
        id_of(&replies[0]) == 513 && declined == 1.0
    });
    assert!(is_seen, "513 have waited at once, or never as many as 512");
}

#[test]
fn refunds_pending_requests_of_closed_connection() {
    let (redis, proxy, host) = one_host(LENIENT);
    assert_eq!(verdict_of(&host.greeted().ask(&hit(1, "u1"))), ALLOW);
    await_left(&redis, 29);
    let mut wire = host.greeted();
    proxy.delay_millis.store(150, Ordering::Relaxed);
    (1..4).for_each(|id| wire.send(&hit(id, "u1")));
    drop(wire);
    await_left(&redis, 26);
    // If decided, they would be allowed and charged.
    proxy.delay_millis.store(0, Ordering::Relaxed);
    stays_left(&redis, &host, 29);
}

#[test]
fn answers_pending_request_after_writing_shutdown() {
    let (redis, proxy, host) = one_host("mode: exact, wait: 50ms, on_redis_down: refuse");
    let mut wire = host.greeted();
    proxy.delay_millis.store(5, Ordering::Relaxed);
    wire.send(&hit(7, "u1"));
    wire.end_writing();
    let answers = wire.hear_all();
    assert_eq!(answers.iter().map(id_of).collect::<Vec<_>>(), [7]);
    stays_left(&redis, &host, if verdict_of(&answers[0]) == ALLOW { 29 } else { 30 });
}

#[test]
fn answers_pending_requests_at_exit() {
    let (redis, _proxy, host) = one_host(LENIENT);
    let mut wire = host.greeted();
    redis.signal(Signal::STOP);
    (1..4).for_each(|id| wire.send(&hit(id, "u1")));
    // It has read them.
    wire.send(&json!([8, 9]));
    assert_eq!(wire.hear().unwrap(), json!([2, 9, true]));
    let mut host = host;
    host.process.signal(15);
    let answers = wire.hear_all();
    redis.signal(Signal::CONT);
    let verdicts: Vec<u64> = answers.iter().take(3).map(verdict_of).collect();
    assert_eq!(verdicts, [ALLOW; 3]);
    assert_eq!(answers[3][0], 4, "then it says goodbye: {answers:?}");
    assert_eq!(host.process.exit_code(), Some(0), "{}", host.log());
}

#[test]
fn retry_of_pending_request_charges_nothing() {
    let (redis, _proxy, host) = one_host("mode: exact, wait: 50ms, on_redis_down: refuse");
    let mut wire = Wire::greeted(&host.socket());
    let named = |id: u64| frame(&json!([3, id, "api", [["user", "u1"]], 20, null, {"idem": "once"}]));
    wire.send_bytes(&[1, 2, 3, 3].map(named).concat());
    assert_eq!(wire.hear().unwrap()[2], 6, "its id is in flight");
    let verdicts: Vec<u64> = (1..4).map(|_| verdict_of(&wire.hear().unwrap())).collect();
    assert_eq!(verdicts, [ALLOW; 3]);
    stays_left(&redis, &host, 10);
}

#[test]
fn answers_local_requests_before_pending_one() {
    let (redis, _proxy, host) = one_host(LENIENT);
    let mut wire = host.greeted();
    redis.signal(Signal::STOP);
    wire.send(&hit(1, "u1"));
    (2..5).for_each(|id| wire.send(&json!([3, id, "api", [["job", "j"]]])));
    // A PEEK and a CHARGE do not wait either.
    wire.send(&json!([4, 5, "api", [["user", "u2"]]]));
    wire.send(&json!([5, 6, "api", [["user", "u3"]], 1]));
    let order: Vec<u64> = (1..7).map(|_| id_of(&wire.hear().unwrap())).collect();
    redis.signal(Signal::CONT);
    assert_eq!(order, [2, 3, 4, 5, 6, 1]);
}

/// A CHARGE of a negative amount, at once and after the tokens of the request have expired, on hosts with and without them.
#[test]
fn refund_returns_to_all_hosts_once() {
    for (mode, pause) in
        [("mode: exact", 0), ("on_miss: ask", 2_100), ("on_miss: refuse", 0), ("on_miss: refuse", 2_100)]
    {
        let redis = Redis::start(&[]);
        let hosts = hosts(2, &redis.url(), &rules("3/day", 3, &format!("{mode}, on_redis_down: refuse")));
        let mut wires = [0, 1].map(|at: usize| hosts[at].greeted());
        let mut spent = Vec::new();
        wait_until("one host spends the budget", || {
            let id = spent.len() as u64;
            let hit = json!([3, 1, "api", [["user", "u1"]], 1, null, {"idem": format!("i{id}")}]);
            (verdict_of(&wires[0].ask(&hit)) == ALLOW).then(|| spent.push(id));
            spent.len() == 3 || lost_replies(&hosts) > 0
        });
        if spent.len() < 3 {
            // On a busy machine Redis may stand still for 250 ms. The token of a reply that was lost stays charged.
            continue;
        }
        assert_eq!(verdict_of(&wires[1].ask(&hit(1, "u1"))), LIMIT, "{mode}");
        sleep(Duration::from_millis(pause));
        let refund = json!([5, 7, "api", [["user", "u1"]], -1, {"of": "i1"}]);
        assert_eq!([0, 1].map(|_| wires[0].ask(&refund)[2] == json!(true)), [true, false], "{mode}");
        wait_until(&format!("the other host passes: {mode}, after {pause} ms"), || {
            sleep(Duration::from_millis(20));
            verdict_of(&wires[1].ask(&hit(8, "u1"))) == ALLOW || lost_replies(&hosts) > 0
        });
        if lost_replies(&hosts) > 0 {
            continue;
        }
        sleep(Duration::from_millis(300));
        assert_eq!(wires.map(|mut wire| verdict_of(&wire.ask(&hit(8, "u1")))), [LIMIT; 2], "{mode}");
    }
}

#[test]
fn status_names_checks_stopped_by_late_replies() {
    let (_redis, proxy, host) = one_host("mode: exact, wait: 20ms, on_redis_down: refuse");
    let output = host.run("why api user=other");
    has(&output, &["30 of 30 left, as far as this host knows: only a request asks Redis"]);
    proxy.delay_millis.store(60, Ordering::Relaxed);
    let mut wire = host.greeted();
    eventually("the status names them", || {
        wire.ask(&hit(1, "u1"));
        host.run("status").contains("remote checks are stopped: Redis answers later").then_some(())
    });
}
