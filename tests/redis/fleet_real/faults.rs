//! Redis fails in all the ways that it has: no caller sees an error, all go on being limited, and once it is back so is the
//! budget.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use tidegate::clock::read_boot_nanos;

use super::daemon::{Daemon, eventually};
use super::hosts::{
    Asked, CUT_OFF, Caller, LINKED, admitted_by_one_bucket, await_one_more, count_log, hosts, most_at_once,
    passed, passed_between, plan, rules,
};
use super::redis_server::Redis;
use super::wire::{Wire, hit, verdict_of};

const RATE: f64 = 200.0;
const BURST: u32 = 100;

/// So long a Redis that has a connection must be silent before it counts as not heard.
const SILENT: Duration = Duration::from_secs(1);

/// Once Redis is heard again.
const RECOVERED: u64 = 3_000_000_000;

/// Two hosts and who asks them, about a budget of the fleet and about a rule of their own.
struct Scene {
    redis: Redis,
    hosts: Vec<Daemon>,
    shared: Vec<Caller>,
    own: Vec<Caller>,
    began: u64,
}

/// What was seen.
struct Seen {
    /// When requests of the shared budget passed.
    passed: Vec<u64>,
    own: Vec<Asked>,
    began: u64,
}

impl Scene {
    fn begin(options: &[&str]) -> Scene {
        let redis = Redis::start(options);
        let hosts = hosts(2, &redis.url(), &rules("200/s", BURST, "on_miss: refuse"));
        let ask = |who, at_once| {
            let callers =
                hosts.iter().map(|host| Caller::start(host.socket(), who, at_once, Duration::from_millis(8)));
            callers.collect::<Vec<_>>()
        };
        let (shared, own) = (ask("u1", 4), ask("job1", 1));
        sleep(Duration::from_millis(1_500));
        Scene { redis, shared, own, hosts, began: read_boot_nanos() }
    }

    /// Waits until every host knows that it is cut off.
    fn await_cut_off(&self) -> u64 {
        self.hosts.iter().for_each(|host| drop(host.await_log(&[CUT_OFF])));
        read_boot_nanos()
    }

    /// Waits until every host hears Redis again, and then as long as it may take until all is as before, and a second.
    /// When the first of them heard it, and the last.
    fn await_recovery(&self) -> (u64, u64) {
        let back = read_boot_nanos();
        let hearing =
            || self.hosts.iter().filter(|host| count_log(host, LINKED) > count_log(host, CUT_OFF)).count();
        eventually("one hears Redis", || (hearing() > 0).then_some(()));
        let first = read_boot_nanos();
        eventually("all hear Redis", || (hearing() == self.hosts.len()).then_some(()));
        let heard = read_boot_nanos();
        eprintln!("heard {} ms after it was back", (heard - back) / 1_000_000);
        sleep(Duration::from_nanos(RECOVERED) + Duration::from_secs(1));
        (first, heard)
    }

    fn end(self) -> (Seen, Redis, Vec<Daemon>) {
        let stop = |callers: Vec<Caller>| callers.into_iter().map(Caller::stop).collect::<Vec<_>>();
        let (shared, own) = (stop(self.shared), stop(self.own));
        let own = own.into_iter().flatten().collect();
        let seen = Seen { passed: passed(&shared), own, began: self.began };
        (seen, self.redis, self.hosts)
    }
}

impl Seen {
    /// What passed between two moments, in parts of the rate.
    fn of_rate(&self, from: u64, to: u64) -> f64 {
        passed_between(&self.passed, from, to) as f64 / (RATE * (to - from) as f64 / 1e9)
    }

    /// Rules of the host decided as fast as before, and let everything pass.
    fn own_rules_know_nothing_of_it(&self) {
        assert!(self.own.iter().all(|asked| asked.passed), "a rule of the host refused");
        let took = |is_during: bool| {
            let asked = self.own.iter().filter(|asked| (asked.at >= self.began) == is_during);
            let mut took: Vec<u64> = asked.map(|asked| asked.took).collect();
            took.sort_unstable();
            (took[took.len() / 2], took[took.len() * 99 / 100])
        };
        let (before, during) = (took(false), took(true));
        eprintln!(
            "rules of the host, µs: {before:?} before, {during:?} then (median and 99 %)",
            before = (before.0 / 1_000, before.1 / 1_000),
            during = (during.0 / 1_000, during.1 / 1_000)
        );
        // The machine is busy with other tests: what is to be seen is a thread that waits for Redis.
        assert!(during.0 <= 3 * before.0.max(10_000_000), "{before:?} {during:?}");
        assert!(during.1 <= 5 * before.1.max(50_000_000), "{before:?} {during:?}");
    }

    fn recovered(&self, heard: u64) {
        let after = self.of_rate(heard + RECOVERED, heard + RECOVERED + 1_000_000_000);
        eprintln!("{:.0} % of the rate after {} s", after * 100.0, RECOVERED / 1_000_000_000);
        assert!(after > 0.0, "nothing passes after the outage");
    }

    /// How much passed at once beyond the burst, in bursts.
    fn excess(&self) -> f64 {
        (most_at_once(&self.passed, RATE) - f64::from(BURST)) / f64::from(BURST)
    }
}

/// An outage that lasts until it is mended.
fn outage(
    options: &[&str],
    breaks: impl FnOnce(&mut Redis),
    mend: impl FnOnce(&mut Redis),
) -> (Seen, Vec<Daemon>) {
    let mut scene = Scene::begin(options);
    breaks(&mut scene.redis);
    let cut_off = scene.await_cut_off();
    sleep(Duration::from_millis(1_500));
    let mended = read_boot_nanos();
    mend(&mut scene.redis);
    let (first, heard) = scene.await_recovery();
    let (seen, _redis, hosts) = scene.end();
    let meanwhile = seen.of_rate(cut_off, mended);
    eprintln!(
        "{:.0} % of the rate meanwhile; {:.2} of the burst beyond the bound",
        meanwhile * 100.0,
        seen.excess()
    );
    // Each host has its half of the rate, and begins with its half of the tokens.
    assert!(meanwhile > 0.0, "nothing passed");
    // Hosts connect again at random moments: who is first has no more than its half until the other is back.
    let late = (heard - first) / 1_000_000;
    assert!(seen.excess() <= 1.5, "{} bursts, the last {late} ms after the first", seen.excess());
    seen.own_rules_know_nothing_of_it();
    seen.recovered(heard);
    (seen, hosts)
}

/// A host that has never heard Redis takes its part of as many hosts as the settings name.
#[test]
fn new_host_in_outage_shares_with_hosts_at_least() {
    for (settings, part) in [("", 40), ("\nfleet: {hosts_at_least: 4}\n", 10)] {
        let mut plan = plan("redis://127.0.0.1:1", &rules("1/h", 40, ""), "");
        plan.settings.push_str(settings);
        let host = plan.start();
        let mut wire = Wire::greeted(&host.socket());
        let passed = (0..60).filter(|id| verdict_of(&wire.ask(&hit(*id, "u1"))) == 0).count();
        assert_eq!(passed, part, "{settings}");
    }
}

#[test]
fn survives_stopped_redis() {
    outage(&[], |redis| redis.signal(Signal::STOP), |redis| redis.signal(Signal::CONT));
}

#[test]
fn detects_refused_connection_before_silence_timeout() {
    // A busy machine may be late: silence is never as soon as that.
    let is_sooner = (0..10).any(|_| {
        let mut scene = Scene::begin(&[]);
        let killed = read_boot_nanos();
        scene.redis.kill();
        let took = Duration::from_nanos(scene.await_cut_off() - killed);
        eprintln!("cut off after {took:?}");
        scene.end();
        took < SILENT
    });
    assert!(is_sooner, "it was never known before silence told, or the machine is too busy to tell");
}

#[test]
fn survives_redis_restart_without_data() {
    outage(&[], Redis::kill, |redis| redis.restart(None));
}

#[test]
fn survives_redis_restart_with_data() {
    outage(&["--appendonly", "yes"], Redis::kill, |redis| redis.restart(None));
}

#[test]
fn survives_redis_demoted_to_replica() {
    let (_, hosts) =
        outage(&[], |redis| redis.order("REPLICAOF 127.0.0.1 1"), |redis| redis.order("REPLICAOF NO ONE"));
    hosts[0].await_log(&["no connection to Redis", "readonly"]);
}

#[test]
fn survives_redis_out_of_memory() {
    outage(&[], |redis| redis.order("CONFIG SET maxmemory 1"), |redis| redis.order("CONFIG SET maxmemory 0"));
}

#[test]
fn survives_redis_flush_and_sleep() {
    let scene = Scene::begin(&[]);
    scene.redis.order("SCRIPT FLUSH");
    scene.redis.order("FLUSHALL");
    sleep(Duration::from_millis(500));
    let flushed = read_boot_nanos();
    let _asleep = scene.redis.say_and_go("DEBUG SLEEP 0.6");
    sleep(Duration::from_millis(1_000));
    let (_, heard) = scene.await_recovery();
    let (seen, ..) = scene.end();
    eprintln!("{:.2} of the burst beyond the bound", seen.excess());
    // Known keys begin with nothing.
    assert!(seen.excess() <= 0.2, "{}", seen.excess());
    assert!(seen.of_rate(seen.began, flushed) > 0.0, "it stood still because of a flush");
    seen.own_rules_know_nothing_of_it();
    seen.recovered(heard);
}

/// Who may not is not asked again for half a minute: that it goes on alone is what can be seen.
#[test]
fn falls_back_when_redis_revokes_rights() {
    let scene = Scene::begin(&[]);
    let before: Vec<usize> = scene.hosts.iter().map(|host| count_log(host, "noperm")).collect();
    scene.redis.order("ACL SETUSER default -evalsha");
    let cut_off = scene.await_cut_off();
    scene.hosts.iter().zip(before).for_each(|(host, before)| await_one_more(host, "noperm", before));
    sleep(Duration::from_millis(1_500));
    let end = read_boot_nanos();
    let (seen, ..) = scene.end();
    let meanwhile = seen.of_rate(cut_off, end);
    assert!(meanwhile > 0.0, "nothing passed");
    assert!(seen.excess() <= 1.5, "{} bursts", seen.excess());
    seen.own_rules_know_nothing_of_it();
}

#[test]
fn starts_without_reachable_redis() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let nowhere = format!("{}-not", redis.url());
    for (url, more, says) in [(redis.url(), ", password_file: password", "auth"), (nowhere, "", "down")] {
        let plan = plan(&url, &rules("200/s", BURST, "on_miss: admit"), more);
        fs::write(plan.path("password"), "wrong\n").unwrap();
        let host = plan.start();
        host.await_log(&["no connection to Redis", says]);
        let asked = super::hosts::ask_all(
            std::slice::from_ref(&host),
            4,
            Duration::from_millis(5),
            Duration::from_secs(1),
        );
        let at = passed(&asked);
        let most = most_at_once(&at, RATE);
        let alone = admitted_by_one_bucket(&asked, RATE, BURST);
        assert!(at.len() * 10 >= alone * 8, "it limits alone: {} of {alone} passed", at.len());
        assert!(most <= f64::from(BURST) + RATE / 10.0, "{most}");
        assert!(!host.log().contains("wrong"), "no password in the log");
    }
}
