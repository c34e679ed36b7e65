//! Tests the windows of a descriptor file that three daemons share.

use super::hosts::{Asked, LINKED, ask_all, plan, unanswered_checks};
use crate::prelude::*;
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts admissions by second on this machine's clock, which Redis shares: requests sent and answered within
/// it.
#[allow(clippy::disallowed_methods, reason = "the windows of Redis turn by the wall clock")]
fn by_window(asked: &[Asked]) -> Vec<usize> {
    // Offset of the wall clock from the boot clock.
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let offset = u64::try_from(unix).unwrap() - read_boot_nanos();
    let window = |at: u64| (at + offset) / 1_000_000_000;
    let (first, last) = (window(asked[0].at), window(asked[asked.len() - 1].at));
    let in_window = |number: u64| {
        let is_in = |asked: &&Asked| {
            asked.passed && window(asked.at - asked.took) == number && window(asked.at) == number
        };
        asked.iter().filter(is_in).count()
    };
    (first + 1..last).map(in_window).collect()
}

#[test]
fn hosts_share_the_windows_of_descriptors() {
    let rules =
        "domain: api\ndescriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 300}}]\n";
    let redis = Redis::start(&[]);
    let plan = || plan(&redis.url(), rules, "}\ndomains: {api: {scope: fleet}");
    let hosts = [(); 3].map(|()| plan().start());
    hosts.iter().for_each(|host| drop(host.await_log(&[LINKED])));
    let asked = ask_all(&hosts, 4, Duration::from_millis(16), Duration::from_secs(5));
    let mut asked: Vec<Asked> = asked.into_iter().flatten().collect();
    asked.sort_unstable_by_key(|asked| asked.at);
    let windows = by_window(&asked);
    // Up to a tenth more on credit. Hosts whose remote checks time out count locally.
    let most = if unanswered_checks(&hosts) == 0.0 { 330 } else { 3 * 300 };
    eprintln!("{windows:?} passed in each window of 300");
    assert!(windows.iter().all(|passed| *passed <= most), "{windows:?} of 300");
    assert!(windows.iter().any(|passed| *passed > 0), "nothing passed");
}
