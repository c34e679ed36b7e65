//! Tests two regions, each with its own Redis and a portion of every budget.

use super::hosts::{ask_all, await_counted, most_at_once, passed, passed_between, plan, rules};
use crate::prelude::*;

const RATE: f64 = 400.0;
const BURST: u32 = 200;
const LASTS: Duration = Duration::from_secs(3);

#[test]
fn regions_admit_their_share_of_the_budget() {
    let servers = [Redis::start(&[]), Redis::start(&[])];
    let start = |redis: &Redis, weight: &str| -> Daemon {
        let rules = rules("400/s", BURST, "on_miss: refuse");
        plan(&redis.url(), &rules, &format!(", region_weight: {weight}")).start()
    };
    let hosts = [start(&servers[0], "75%"), start(&servers[0], "75%"), start(&servers[1], "25%")];
    await_counted(&hosts[..2], 2);
    await_counted(&hosts[2..], 1);
    let asked = ask_all(&hosts, 4, Duration::from_millis(10), LASTS);
    let end = asked.iter().flatten().map(|asked| asked.at).max().unwrap();
    let began = asked.iter().flatten().map(|asked| asked.at).min().unwrap();
    let seconds = (end - began) as f64 / 1e9;
    // Replies are stamped on arrival: up to 50 ms late.
    for (part, of, what) in [(&asked[..2], 0.75, "a"), (&asked[2..], 0.25, "b"), (&asked[..], 1.0, "both")] {
        let at = passed(part);
        let most = most_at_once(&at, RATE * of);
        let used = passed_between(&at, began, end + 1) as f64 / (of * (f64::from(BURST) + RATE * seconds));
        eprintln!("{what}: {} passed, {most:.0} at once, {:.1} % used", at.len(), used * 100.0);
        assert!(most <= of * (f64::from(BURST) + RATE / 20.0) + 1.0, "{what}: {most} at once");
        assert!(used > 0.0, "{what}: {used}");
    }
}
