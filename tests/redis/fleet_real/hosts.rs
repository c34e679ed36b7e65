//! Some daemons that share a Redis, and who asks them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use tidegate::clock::read_boot_nanos;

use super::daemon::{Daemon, Plan, eventually};
use super::http::get;
use super::wire::{Wire, hit, verdict_of};

/// What each daemon says once it hears Redis, and once it does not any more.
pub(crate) const LINKED: &str = "budgets are shared with the other hosts";
pub(crate) const CUT_OFF: &str = "Redis does not answer";

/// A rule of the fleet with these terms, and one of the host for requests about something else.
pub(crate) fn rules(rate: &str, burst: u32, fleet: &str) -> String {
    format!(
        "domain: api\nlimits:\n  - {{name: shared, key: [user], rate: {rate}, burst: {burst}, scope: fleet, fleet: {{{fleet}}}}}\n  \
         - {{name: own, key: [job], rate: 1000000/s}}\n"
    )
}

/// A daemon that is yet to be started, its Redis at this URL.
pub(crate) fn plan(url: &str, rules: &str, more: &str) -> Plan {
    let plan = Plan::new().rules("api.yaml", rules);
    fs::write(plan.path("secret"), [7; 32]).unwrap();
    fs::create_dir(plan.path("state")).unwrap();
    let redis = format!("redis: {{url: \"{url}\", fleet_secret_files: [secret]{more}}}\nstate: state");
    plan.settings(&redis)
}

/// So many of them, of which each hears Redis and has counted the others.
pub(crate) fn hosts(count: usize, url: &str, rules: &str) -> Vec<Daemon> {
    let hosts: Vec<Daemon> = (0..count).map(|_| plan(url, rules, "").start()).collect();
    await_counted(&hosts, count);
    hosts
}

/// Waits until each of them hears Redis and has counted so many: each says once a second that it is alive.
pub(crate) fn await_counted(hosts: &[Daemon], count: usize) {
    for host in hosts {
        host.await_log(&[LINKED]);
        let counted = || metric(host, "tidegate_fleet_hosts") >= count as f64;
        eventually(&format!("{count} hosts are counted"), || counted().then_some(()));
    }
}

/// What one metric of a daemon shows.
pub(crate) fn metric(host: &Daemon, name: &str) -> f64 {
    let page = get(host, "/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).trim().parse().unwrap()
}

/// The remote checks of these hosts that Redis did not answer in time.
pub(crate) fn unanswered_checks(hosts: &[Daemon]) -> f64 {
    let count = |host, outcome| metric(host, &format!("tidegate_fleet_asked_total{{outcome=\"{outcome}\"}}"));
    hosts.iter().map(|host| count(host, "late") + count(host, "declined")).sum()
}

/// How often a line with these words is in the log.
pub(crate) fn count_log(host: &Daemon, words: &str) -> usize {
    host.log().lines().filter(|line| line.contains(words)).count()
}

/// Waits for one more such line than there were.
pub(crate) fn await_one_more(host: &Daemon, words: &str, before: usize) {
    eventually(&format!("another line of the log with {words}"), || {
        (count_log(host, words) > before).then_some(())
    });
}

/// What came of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// When the answer was there.
    pub(crate) at: u64,
    pub(crate) took: u64,
    pub(crate) passed: bool,
}

/// Somebody who asks, until told to stop.
pub(crate) struct Caller {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Asked>>,
}

impl Caller {
    /// Asks about a user, or about a job where the name begins with `job`, so many at a time, with a pause between.
    pub(crate) fn start(socket: PathBuf, who: &'static str, at_once: u64, pause: Duration) -> Caller {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut wire = Wire::greeted(&socket);
            let mut asked = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = read_boot_nanos();
                (0..at_once).for_each(|id| wire.send(&question(id, who)));
                for _ in 0..at_once {
                    // What is an error is no verdict: it fails the test.
                    let reply = wire.hear().expect("an answer");
                    let at = read_boot_nanos();
                    asked.push(Asked { at, took: at - began, passed: verdict_of(&reply) == ALLOW });
                }
                sleep(pause);
            }
            asked
        });
        Caller { stop, thread }
    }

    /// All that it asked.
    pub(crate) fn stop(self) -> Vec<Asked> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn question(id: u64, who: &str) -> serde_json::Value {
    match who.starts_with("job") {
        true => serde_json::json!([3, id, "api", [["job", who]]]),
        false => hit(id, who),
    }
}

/// Callers of all hosts at once, for a while.
pub(crate) fn ask_all(hosts: &[Daemon], at_once: u64, pause: Duration, lasts: Duration) -> Vec<Vec<Asked>> {
    let callers: Vec<_> =
        hosts.iter().map(|host| Caller::start(host.socket(), "u1", at_once, pause)).collect();
    sleep(lasts);
    callers.into_iter().map(Caller::stop).collect()
}

/// When requests passed, in order.
pub(crate) fn passed(asked: &[Vec<Asked>]) -> Vec<u64> {
    let mut at: Vec<u64> =
        asked.iter().flatten().filter(|asked| asked.passed).map(|asked| asked.at).collect();
    at.sort_unstable();
    at
}

/// The most that passed in any window beyond what the rate gives in it: to be held against the burst.
pub(crate) fn most_at_once(passed: &[u64], rate: f64) -> f64 {
    let (mut full, mut most, mut last) = (0.0_f64, 0.0_f64, 0);
    for at in passed {
        full = (full - (at - last) as f64 / 1e9 * rate).max(0.0) + 1.0;
        most = most.max(full);
        last = *at;
    }
    most
}

/// How many of these requests one bucket admits, each at the time of its answer: fewer where the machine kept callers waiting.
pub(crate) fn admitted_by_one_bucket(asked: &[Vec<Asked>], rate: f64, burst: u32) -> usize {
    let mut at: Vec<u64> = asked.iter().flatten().map(|asked| asked.at).collect();
    at.sort_unstable();
    let (mut level, mut last, mut admitted) = (f64::from(burst), at.first().copied().unwrap_or_default(), 0);
    for at in at {
        level = (level + (at - last) as f64 / 1e9 * rate).min(f64::from(burst));
        last = at;
        if level >= 1.0 {
            level -= 1.0;
            admitted += 1;
        }
    }
    admitted
}

/// How many passed in a span.
pub(crate) fn passed_between(passed: &[u64], from: u64, to: u64) -> usize {
    passed.iter().filter(|at| (from..to).contains(at)).count()
}

const ALLOW: u64 = 0;
