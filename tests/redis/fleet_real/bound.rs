//! Tests hosts that share one limit under several times its load: three, and in the nightly run twenty.

use std::time::Duration;

use super::hosts::{ask_all, hosts, most_at_once, passed, rules};
use super::redis_server::Redis;

const RATE: f64 = 1_000.0;
const BURST: u32 = 1_000;

/// Each caller sends this many requests at once, then pauses; about a thousand a second.
const AT_ONCE: u64 = 8;
const PAUSE: Duration = Duration::from_micros(7_500);

/// Tolerance of 0.1 s: replies are stamped when read, with many hosts on one machine.
const STAMPS: f64 = RATE / 10.0;

/// Loads hosts for some seconds. Returns peak admissions, and admissions as a portion of one bucket.
fn run(count: usize, fleet: &str, seconds: u64) -> (f64, f64) {
    let redis = Redis::start(&[]);
    let hosts = hosts(count, &redis.url(), &rules("1000/s", BURST, fleet));
    let asked = ask_all(&hosts, AT_ONCE, PAUSE, Duration::from_secs(seconds));
    let at = passed(&asked);
    let times = || asked.iter().flatten().map(|asked| asked.at);
    let (offered, first, last) = (times().count(), times().min().unwrap(), times().max().unwrap());
    let most = most_at_once(&at, RATE);
    let used = at.len() as f64 / (f64::from(BURST) + (last - first) as f64 / 1e9 * RATE);
    eprintln!("{count} hosts, {fleet}: {offered} asked, {most:.0} at once, {:.2} % used", used * 100.0);
    (most, used)
}

/// The simulation tests utilization: on a busy machine it varies.
#[test]
fn three_hosts_stay_within_stated_bound() {
    for (fleet, extra) in [("on_miss: refuse", 0.0), ("on_miss: admit", 0.1)] {
        let (most, used) = run(3, fleet, 3);
        assert!(most <= f64::from(BURST) * (1.0 + extra) + STAMPS, "{fleet}: {most}");
        assert!(used > 0.0, "{fleet}: {used}");
    }
}

#[test]
#[ignore = "two minutes of twenty daemons: in the nightly run"]
fn twenty_hosts_use_whole_limit_within_bound() {
    for (fleet, extra) in [("on_miss: refuse", 0.0), ("on_miss: admit", 0.1)] {
        let (most, used) = run(20, fleet, 60);
        assert!(most <= f64::from(BURST) * (1.0 + extra) + STAMPS, "{most}");
        assert!((0.98..=1.01).contains(&used), "{used}");
    }
}
