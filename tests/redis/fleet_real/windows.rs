//! Tests windows that three daemons share: fixed ones, sliding ones, and those of a descriptor file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::clock::read_boot_nanos;

use super::hosts::{Asked, LINKED, ask_all, plan, unanswered_checks};
use super::redis_server::Redis;

const SECOND: u64 = 1_000_000_000;

/// Overloads three hosts with these rules. Returns the requests, and the number of remote checks without a
/// reply in time.
fn three(rules: &str, more: &str, lasts: Duration) -> (Vec<Asked>, f64) {
    let redis = Redis::start(&[]);
    let hosts: Vec<_> = (0..3).map(|_| plan(&redis.url(), rules, more).start()).collect();
    hosts.iter().for_each(|host| drop(host.await_log(&[LINKED])));
    let mut asked: Vec<Asked> =
        ask_all(&hosts, 4, Duration::from_millis(16), lasts).into_iter().flatten().collect();
    asked.sort_unstable_by_key(|asked| asked.at);
    (asked, unanswered_checks(&hosts))
}

/// Counts admissions by window on this machine's clock, which Redis shares: requests sent and answered within
/// it.
#[allow(clippy::disallowed_methods, reason = "the windows of Redis turn by the wall clock")]
fn by_window(asked: &[Asked], span: u64) -> Vec<usize> {
    // Offset of the wall clock from the boot clock.
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let offset = u64::try_from(unix).unwrap() - read_boot_nanos();
    let window = |at: u64| (at + offset) / span;
    let (first, last) = (window(asked[0].at), window(asked[asked.len() - 1].at));
    let in_window = |number: u64| {
        let is_in = |asked: &&Asked| {
            asked.passed && window(asked.at - asked.took) == number && window(asked.at) == number
        };
        asked.iter().filter(is_in).count()
    };
    (first + 1..last).map(in_window).collect()
}

fn check_fixed(name: &str, windows: &[usize], limit: usize, most: usize) {
    eprintln!("{name}: {windows:?} passed in each window of {limit}");
    assert!(windows.iter().all(|passed| *passed <= most), "{name}: {windows:?} of {limit}");
    let used = windows.iter().sum::<usize>() as f64 / (limit * windows.len()) as f64;
    assert!(used > 0.0, "{name}: nothing passed");
}

#[test]
fn hosts_share_a_fixed_window() {
    let rules = "domain: api\nlimits:\n  - {name: shared, key: [user], algorithm: fixed_window, rate: 400/2s, \
                 scope: fleet, fleet: {on_miss: refuse, on_redis_down: refuse}}\n";
    let (asked, _) = three(rules, "", Duration::from_secs(7));
    check_fixed("fixed", &by_window(&asked, 2 * SECOND), 400, 400);
}

#[test]
fn hosts_share_the_windows_of_descriptors() {
    let rules =
        "domain: api\ndescriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 300}}]\n";
    let (asked, unanswered) = three(rules, "}\ndomains: {api: {scope: fleet}", Duration::from_secs(5));
    // Up to a tenth more on credit. Hosts whose remote checks time out count locally.
    let most = if unanswered == 0.0 { 330 } else { 3 * 300 };
    check_fixed("descriptors", &by_window(&asked, SECOND), 300, most);
}
