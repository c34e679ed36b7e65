//! What hosts admit together while all is well.

use std::time::Duration;

use super::calm::Calm;
use super::hosts::{ask_all, hosts, most_at_once, passed, passed_between, rules};
use super::redis_server::Redis;

const RATE: f64 = 200.0;
const BURST: u32 = 100;
const LASTS: Duration = Duration::from_secs(6);

/// Answers are stamped when they are heard: on a busy machine that is later for some than for others. A twentieth of a second.
const STAMPS: f64 = RATE / 20.0;

/// Three hosts, asked for ten times the limit; the most at once, and the part that was used of what might have passed once
/// the burst was spent.
fn three(fleet: &str) -> Option<(f64, f64)> {
    let redis = Redis::start(&[]);
    let hosts = hosts(3, &redis.url(), &rules("200/s", BURST, fleet));
    let calm = Calm::watch();
    let asked = ask_all(&hosts, 4, Duration::from_millis(5), LASTS);
    let calm = calm.was_kept();
    let at = passed(&asked);
    let (first, last) = (
        asked.iter().flatten().map(|asked| asked.at).min()?,
        asked.iter().flatten().map(|asked| asked.at).max()?,
    );
    let most = most_at_once(&at, RATE);
    let might = f64::from(BURST) + (last - first) as f64 / 1e9 * RATE;
    let used = passed_between(&at, first, last + 1) as f64 / might;
    let offered: usize = asked.iter().map(Vec::len).sum();
    eprintln!("{fleet}: {offered} asked, {} passed, {most:.0} at once, {:.1} % used", at.len(), used * 100.0);
    assert!(!calm || offered as f64 > 3.0 * might, "too few were asked to tell anything: {offered}");
    Some((most, if calm { used } else { 1.0 }))
}

#[test]
fn without_credit_hosts_admit_no_more_than_the_budget() {
    let Some((most, used)) = three("on_miss: refuse") else { return };
    assert!(most <= f64::from(BURST) + STAMPS, "{most}");
    assert!(used >= 0.95, "{used}");
}

#[test]
fn with_credit_hosts_admit_no_more_than_the_stated_bound() {
    let Some((most, used)) = three("on_miss: admit") else { return };
    assert!(most <= f64::from(BURST) * 1.1 + STAMPS, "{most}");
    assert!(used >= 0.95, "{used}");
}
