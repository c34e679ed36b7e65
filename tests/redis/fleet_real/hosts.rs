//! Starts daemons that share a Redis.

use std::ops::RangeInclusive;

use crate::prelude::*;

/// Log lines of a daemon once it is linked, and once it detects an outage.
pub(crate) const LINKED: &str = "budgets are shared with the other hosts";
pub(crate) const CUT_OFF: &str = "fleet rules follow `on_redis_down` until";

/// Returns a fleet rule with this quota, and a host rule for other requests.
pub(crate) fn rules(rate: &str, burst: u32, fleet: &str) -> String {
    format!(
        "domain: api\nlimits:\n  - {{name: shared, key: [user], rate: {rate}, burst: {burst}, scope: fleet, fleet: {{{fleet}}}}}\n  \
         - {{name: own, key: [job], rate: 1000000/s}}\n"
    )
}

/// Prepares a daemon with its Redis at this URL.
pub(crate) fn plan(url: &str, rules: &str, more: &str) -> Plan {
    let plan = Plan::new().rules("api.yaml", rules);
    fs::write(plan.path("secret"), [7; 32]).unwrap();
    fs::create_dir(plan.path("state")).unwrap();
    let redis = format!("redis: {{url: \"{url}\", fleet_secret_files: [secret]{more}}}\nstate: state");
    plan.settings(&redis)
}

/// Starts `count` daemons; each is linked and has counted the others.
pub(crate) fn hosts(count: usize, url: &str, rules: &str) -> Vec<Daemon> {
    let hosts: Vec<Daemon> = (0..count).map(|_| plan(url, rules, "").start()).collect();
    await_counted(&hosts, count);
    hosts
}

/// Waits until each is linked and has counted `count` hosts: heartbeats are a second apart.
pub(crate) fn await_counted(hosts: &[Daemon], count: usize) {
    for host in hosts {
        host.await_log(&[LINKED]);
        let counted = || metric(host, "tidegate_fleet_hosts") >= count as f64;
        wait_until(&format!("{count} hosts are counted"), counted);
    }
}

pub(crate) fn metric(host: &Daemon, name: &str) -> f64 {
    super::http::metric(host, name).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the commands of these hosts whose replies were lost: Redis may have run them.
pub(crate) fn lost_replies(hosts: &[Daemon]) -> usize {
    let timeouts = |host| metric(host, "tidegate_fleet_errors_total{class=\"timeout\"}");
    hosts.iter().map(timeouts).sum::<f64>() as usize
}

pub(crate) fn count_log(host: &Daemon, words: &str) -> usize {
    host.log().lines().filter(|line| line.contains(words)).count()
}

/// Asserts how many requests passed, unless Redis answered one of them too late, as on a busy machine.
pub(crate) fn assert_passed(hosts: &[Daemon], passed: u64, wanted: RangeInclusive<u64>) {
    let is_late = |host| metric(host, "tidegate_fleet_asked_total{outcome=\"late\"}") > 0.0;
    if !wanted.contains(&passed) {
        let what = format!("{passed} passed, {wanted:?} wanted: a reply was late");
        wait_until(&what, || hosts.iter().any(is_late));
    }
}
