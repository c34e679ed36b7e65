//! Starts daemons that share a Redis, and their callers.

use crate::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

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

/// Returns the remote checks of these hosts without a reply in time.
pub(crate) fn unanswered_checks(hosts: &[Daemon]) -> f64 {
    let count = |host, outcome| metric(host, &format!("tidegate_fleet_asked_total{{outcome=\"{outcome}\"}}"));
    hosts.iter().map(|host| count(host, "late") + count(host, "declined")).sum()
}

/// Returns the commands of these hosts whose replies were lost: Redis may have run them.
pub(crate) fn lost_replies(hosts: &[Daemon]) -> usize {
    let timeouts = |host| metric(host, "tidegate_fleet_errors_total{class=\"timeout\"}");
    hosts.iter().map(timeouts).sum::<f64>() as usize
}

pub(crate) fn count_log(host: &Daemon, words: &str) -> usize {
    host.log().lines().filter(|line| line.contains(words)).count()
}

pub(crate) fn await_one_more(host: &Daemon, words: &str, before: usize) {
    wait_until(&format!("another line of the log with {words}"), || count_log(host, words) > before);
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Arrival time of the reply.
    pub(crate) at: u64,
    pub(crate) took: u64,
    pub(crate) passed: bool,
}

pub(crate) struct Caller {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Asked>>,
}

impl Caller {
    /// Sends `at_once` requests with pauses, for a user, or for a job if the name begins with `job`.
    pub(crate) fn start(socket: PathBuf, caller: &'static str, at_once: u64, pause: Duration) -> Caller {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut wire = Wire::greeted(&socket);
            let mut asked = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = read_boot_nanos();
                (0..at_once).for_each(|id| wire.send(&question(id, caller)));
                for _ in 0..at_once {
                    // An error instead of a verdict fails the test.
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

    pub(crate) fn stop(self) -> Vec<Asked> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn question(id: u64, caller: &str) -> Value {
    match caller.starts_with("job") {
        true => json!([3, id, "api", [["job", caller]]]),
        false => hit(id, caller),
    }
}

/// Runs callers on all hosts for a while.
pub(crate) fn ask_all(hosts: &[Daemon], at_once: u64, pause: Duration, lasts: Duration) -> Vec<Vec<Asked>> {
    let callers: Vec<_> =
        hosts.iter().map(|host| Caller::start(host.socket(), "u1", at_once, pause)).collect();
    sleep(lasts);
    callers.into_iter().map(Caller::stop).collect()
}

/// Returns when requests passed, in order.
pub(crate) fn passed(asked: &[Vec<Asked>]) -> Vec<u64> {
    let mut at: Vec<u64> =
        asked.iter().flatten().filter(|asked| asked.passed).map(|asked| asked.at).collect();
    at.sort_unstable();
    at
}

/// Returns the largest excess over the rate in any window, to compare with the burst.
pub(crate) fn most_at_once(passed: &[u64], rate: f64) -> f64 {
    let (mut full, mut most, mut last) = (0.0_f64, 0.0_f64, 0);
    for at in passed {
        full = (full - (at - last) as f64 / 1e9 * rate).max(0.0) + 1.0;
        most = most.max(full);
        last = *at;
    }
    most
}

/// Returns how many of these requests one bucket admits, each at its reply: fewer if the machine delayed
/// callers.
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

/// Asserts that a host without the others gives a caller the whole budget, and about no more.
pub(crate) fn assert_limits_alone(host: &Daemon, rate: f64, burst: u32) {
    let hosts = std::slice::from_ref(host);
    let asked = ask_all(hosts, 4, Duration::from_millis(5), Duration::from_secs(1));
    let (at, alone) = (passed(&asked), admitted_by_one_bucket(&asked, rate, burst));
    assert!(at.len() * 10 >= alone * 8, "it limits alone: {} of {alone} passed", at.len());
    let most = most_at_once(&at, rate);
    assert!(most <= f64::from(burst) * 1.1 + rate / 10.0, "{most}");
}

/// Returns how many passed in a span.
pub(crate) fn passed_between(passed: &[u64], from: u64, to: u64) -> usize {
    passed.iter().filter(|at| (from..to).contains(at)).count()
}

const ALLOW: u64 = 0;
