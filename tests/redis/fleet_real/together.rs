//! What hosts admit together while all is well.

use std::time::Duration;

use super::hosts::{ask_all, hosts, most_at_once, passed, passed_between, rules};
use super::redis_server::Redis;

const RATE: f64 = 200.0;
const BURST: u32 = 100;
const LASTS: Duration = Duration::from_secs(6);

/// Answers are stamped when they are heard: on a busy machine that is later for some than for others. A twentieth of a second.
const STAMPS: f64 = RATE / 20.0;

/// The most that passed at once on three hosts that are asked for several times the limit. The simulation tests how much
/// of the limit they use: on a busy machine that varies.
fn three(fleet: &str) -> f64 {
    let redis = Redis::start(&[]);
    let hosts = hosts(3, &redis.url(), &rules("200/s", BURST, fleet));
    let asked = ask_all(&hosts, 4, Duration::from_millis(10), LASTS);
    let at = passed(&asked);
    let times = || asked.iter().flatten().map(|asked| asked.at);
    let (first, last) = (times().min().unwrap(), times().max().unwrap());
    let most = most_at_once(&at, RATE);
    let might = f64::from(BURST) + (last - first) as f64 / 1e9 * RATE;
    let used = passed_between(&at, first, last + 1) as f64 / might;
    let offered: usize = asked.iter().map(Vec::len).sum();
    eprintln!("{fleet}: {offered} asked, {} passed, {most:.0} at once, {:.1} % used", at.len(), used * 100.0);
    assert!(used > 0.0, "{used}");
    most
}

#[test]
fn without_credit_hosts_admit_no_more_than_the_budget() {
    let most = three("on_miss: refuse");
    assert!(most <= f64::from(BURST) + STAMPS, "{most}");
}

#[test]
fn with_credit_hosts_admit_no_more_than_the_stated_bound() {
    let most = three("on_miss: admit");
    assert!(most <= f64::from(BURST) * 1.1 + STAMPS, "{most}");
}
