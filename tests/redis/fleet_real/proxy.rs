//! Replies that never come, or late: what was done is done once.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use super::daemon::eventually;
use super::hosts::{CUT_OFF, Caller, LINKED, count_log, hosts, passed};
use super::leaving::{end, left, once};
use super::redis_server::Redis;
use super::way::Way;

#[test]
fn charges_at_least_the_admitted_tokens_when_replies_are_lost() {
    let redis = Redis::start(&[]);
    let way = Way::to(&redis.socket());
    let mut hosts = hosts(3, &way.url(), &once());
    let callers: Vec<_> =
        hosts.iter().map(|host| Caller::start(host.socket(), "u1", 1, Duration::from_millis(4))).collect();
    // A busy machine sends fewer calls: until enough of them were lost.
    for round in 0..100 {
        for (drop_one_in, delay_millis) in [(9, 0), (6, 20), (0, 60), (9, 0)] {
            way.mood().drop_one_in.store(drop_one_in, Ordering::Relaxed);
            way.mood().delay_millis.store(delay_millis, Ordering::Relaxed);
            sleep(Duration::from_millis(if round == 0 { 1_500 } else { 200 }));
        }
        if way.mood().dropped.load(Ordering::Relaxed) >= 5 {
            break;
        }
    }
    way.mood().drop_one_in.store(0, Ordering::Relaxed);
    way.mood().delay_millis.store(0, Ordering::Relaxed);
    let asked: Vec<_> = callers.into_iter().map(Caller::stop).collect();
    // Whoever was cut off has to hear Redis again before it can settle.
    for host in &hosts {
        eventually("Redis is heard", || (count_log(host, LINKED) > count_log(host, CUT_OFF)).then_some(()));
    }
    sleep(Duration::from_millis(500));
    let (admitted, dropped) = (passed(&asked).len(), way.mood().dropped.load(Ordering::Relaxed));
    end(&mut hosts);
    let left = left(&redis);
    eprintln!("{admitted} passed, {left} left, {dropped} replies dropped");
    assert!(dropped >= 5 && admitted > 0, "{dropped} {admitted}");
    // What a lost reply granted is charged.
    let not_admitted = 3_000 - i64::try_from(admitted).unwrap();
    assert!(left <= not_admitted, "{left} of {not_admitted}");
}
