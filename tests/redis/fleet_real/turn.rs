//! All hosts turn to another secret where keys are spread over servers: of each key as much passes as there is, whether hosts
//! borrow ahead, ask when they lack, or always ask.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::Duration;

use serde_json::json;
use tidegate::clock::boot_nanos;

use super::calm::Calm;
use super::daemon::{Daemon, eventually};
use super::hosts::{LINKED, count_log, plan};
use super::leaving::end;
use super::redis_cluster::Three;
use super::redis_server::{Redis, is_installed};
use super::trust::{TURNS, secret, with_secrets};
use super::wire::{Wire, verdict_of};

/// What there is of each key: so slowly earned that nothing comes back while a test lasts.
const BURST: usize = 400;
const DEADLINE: Duration = Duration::from_millis(50);

/// A rule by each of these, and keys of each.
const RULES: [(&str, &str); 3] = [
    ("borrowed", "on_miss: refuse"),
    ("asked", "on_miss: ask, wait: 50ms"),
    ("exact", "mode: exact, wait: 50ms"),
];
const KEYS: [&str; 4] = ["k1", "k2", "k3", "k4"];

fn rules() -> String {
    let rule = |(name, fleet): (&str, &str)| {
        format!(
            "  - {{name: {name}, key: [{name}], rate: 1/day, burst: {BURST}, scope: fleet, fleet: {{{fleet}, on_redis_down: refuse}}}}\n"
        )
    };
    RULES.map(rule).concat()
}

/// What was asked about all keys, and what came of it.
#[derive(Default)]
struct Tally {
    /// By rule and key.
    passed: [[AtomicUsize; KEYS.len()]; RULES.len()],
    took: Mutex<Vec<Duration>>,
}

impl Tally {
    fn passed(&self) -> impl Iterator<Item = (usize, &'static str, &'static str)> + '_ {
        let by_key = |(rule, of): (usize, &'static str)| {
            let passed = self.passed[rule].iter().map(|passed| passed.load(Ordering::Relaxed));
            passed.zip(KEYS).map(move |(passed, key)| (passed, of, key))
        };
        RULES.iter().map(|(name, _)| *name).enumerate().flat_map(by_key)
    }

    /// Asks a host about each key once, and then again, until told to stop. An answer that is an error fails the test.
    fn ask(&self, host: &Daemon, stop: &AtomicBool) {
        let mut wire = Wire::greeted(&host.socket());
        while !stop.load(Ordering::Relaxed) {
            let began = boot_nanos();
            for (rule, (name, _)) in RULES.iter().enumerate() {
                for (at, key) in KEYS.iter().enumerate() {
                    wire.send(&json!([3, rule * KEYS.len() + at, "api", [[name, key]]]));
                }
            }
            for _ in 0..RULES.len() * KEYS.len() {
                let reply = wire.hear().expect("an answer");
                let number = usize::try_from(reply[1].as_u64().unwrap()).unwrap();
                self.took.lock().unwrap().push(Duration::from_nanos(boot_nanos() - began));
                let passes = verdict_of(&reply) == 0;
                let passed = &self.passed[number / KEYS.len()][number % KEYS.len()];
                passed.fetch_add(usize::from(passes), Ordering::Relaxed);
            }
            sleep(PAUSE);
        }
    }

    /// Asks all hosts at once, until that is so.
    fn ask_all_until(&self, hosts: &[Daemon], what: &str, mut is_so: impl FnMut() -> bool) {
        let stop = AtomicBool::new(false);
        scope(|threads| {
            let _stops = Stops(&stop);
            let callers: Vec<_> = hosts.iter().map(|host| threads.spawn(|| self.ask(host, &stop))).collect();
            // One that has ended has failed.
            let has_failed = || callers.iter().any(ScopedJoinHandle::is_finished);
            eventually(what, || (is_so() || has_failed()).then_some(()));
        });
    }
}

/// Ends those who ask, also where the test has failed.
struct Stops<'s>(&'s AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The hosts that are to be there again, all at once, with other secrets.
fn all_again(mut hosts: Vec<Daemon>, secrets: &[u8]) -> Vec<Daemon> {
    end(&mut hosts);
    hosts.into_iter().map(|host| with_secrets(host.plan, secrets).start()).collect()
}

/// Two hosts turn, with what the settings say of Redis.
fn turn(redis: &str) {
    let start = || {
        let plan = plan("unix:///nowhere", &format!("domain: api\nlimits:\n{}", rules()), "");
        let settings = plan.settings.replace("url: \"unix:///nowhere\"", redis);
        with_secrets(plan.settings(&settings), &[1]).start()
    };
    let hosts = vec![start(), start()];
    let linked = |hosts: &[Daemon]| hosts.iter().for_each(|host| drop(host.await_log(&[LINKED])));
    linked(&hosts);
    let calm = Calm::watch();
    let tally = Tally::default();
    let spends = || tally.passed().all(|(passed, ..)| passed >= BURST / 5);
    tally.ask_all_until(&hosts, "a fifth of each budget is used", spends);
    let old = secret(&hosts[0], "uses");
    let hosts = all_again(hosts, &[2, 1]);
    linked(&hosts);
    // Some three seconds: then it is not all used yet.
    let has_turned = || hosts.iter().all(|host| count_log(host, TURNS) > 0);
    tally.ask_all_until(&hosts, "they turn", has_turned);
    let before: usize = tally.passed().map(|(passed, ..)| passed).sum();
    // And then until nothing has passed for a while.
    let (mut last, mut looks) = (0, 0);
    tally.ask_all_until(&hosts, "all is used", || {
        let passed: usize = tally.passed().map(|(passed, ..)| passed).sum();
        looks = if passed > last { 0 } else { looks + 1 };
        last = passed;
        looks > LOOKS
    });
    let calm = calm.was_kept();
    for host in &hosts {
        assert_eq!(count_log(host, TURNS), 1, "{}", host.log());
        assert_ne!(secret(host, "uses"), old);
    }
    let mut took = tally.took.lock().unwrap();
    took.sort_unstable();
    let (nearly_all, longest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    eprintln!(
        "{before} before the turn, {nearly_all:?} and {longest:?}: {:?}",
        tally.passed().collect::<Vec<_>>()
    );
    for (passed, rule, key) in tally.passed() {
        assert!(passed <= BURST, "{rule}: {passed} of {key}");
        // What is paid for in the moment of the turn is nobody's; what a busy host lends and hears too late is not either.
        assert!(!calm || passed + BURST / 10 >= BURST, "{rule}: {passed} of {key}");
    }
    assert!(!calm || nearly_all <= DEADLINE * 2, "{nearly_all:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}: until the turn is over");
}

#[test]
fn over_several_servers_all_turn_and_each_key_has_what_it_had() {
    if !is_installed() {
        return;
    }
    let servers: [Redis; 3] = std::array::from_fn(|_| Redis::start(&[]));
    let urls = servers.each_ref().map(|server| format!("\"{}\"", server.url())).join(", ");
    turn(&format!("urls: [{urls}]"));
}

#[test]
fn in_a_cluster_all_turn_and_each_key_has_what_it_had() {
    if !is_installed() {
        return;
    }
    let cluster = Three::start();
    turn(&format!("url: \"redis://127.0.0.1:{}\", cluster: true", cluster.0[0].port));
}

/// So that about a quarter is left when they turn, some four seconds after the first request.
const PAUSE: Duration = Duration::from_millis(25);

/// How often it is looked whether any has passed meanwhile: some half a second.
const LOOKS: u32 = 150;
