//! Tests all failures of Redis: callers see no error and stay limited, and the budget recovers with Redis.

use super::hosts::{
    Asked, CUT_OFF, Caller, LINKED, await_one_more, count_log, hosts, metric, most_at_once, passed,
    passed_between, plan, rules,
};
use crate::prelude::*;
use rustix::process::Signal;

const RATE: f64 = 200.0;
const BURST: u32 = 100;

/// Time to full recovery after Redis is reachable again.
const RECOVERED: Duration = Duration::from_secs(3);

/// Two hosts, with callers of a fleet budget and of a host rule.
struct Scene {
    redis: Redis,
    hosts: Vec<Daemon>,
    callers: Vec<Caller>,
}

impl Scene {
    fn begin() -> Scene {
        let redis = Redis::start(&[]);
        let hosts = hosts(2, &redis.url(), &rules("200/s", BURST, "on_miss: refuse"));
        let callers = ["u1", "job1"].into_iter().flat_map(|caller| {
            let at_once = if caller == "u1" { 4 } else { 1 };
            hosts
                .iter()
                .map(move |host| Caller::start(host.socket(), caller, at_once, Duration::from_millis(16)))
        });
        let callers = callers.collect();
        sleep(Duration::from_millis(1_500));
        Scene { redis, callers, hosts }
    }

    /// Waits until each host has detected the outage.
    fn await_cut_off(&self) -> u64 {
        self.hosts.iter().for_each(|host| drop(host.await_log(&[CUT_OFF])));
        read_boot_nanos()
    }

    /// Waits until each host is linked again. Returns the time of the last one, and its delay after the
    /// first.
    fn await_linked(&self) -> (u64, Duration) {
        let linked =
            || self.hosts.iter().filter(|host| count_log(host, LINKED) > count_log(host, CUT_OFF)).count();
        wait_until("one hears Redis", || linked() > 0);
        let first = read_boot_nanos();
        wait_until("all hear Redis", || linked() == self.hosts.len());
        let last = read_boot_nanos();
        (last, Duration::from_nanos(last - first))
    }

    /// Stops all callers. Checks that host rules refused no request; returns when requests of the budget
    /// passed.
    fn end(self) -> (Vec<u64>, Vec<Daemon>) {
        let mut asked: Vec<Vec<Asked>> = self.callers.into_iter().map(Caller::stop).collect();
        let own = asked.split_off(self.hosts.len());
        assert!(own.iter().flatten().all(|asked| asked.passed), "a rule of the host refused");
        (passed(&asked), self.hosts)
    }
}

/// Returns the excess over the burst, in bursts.
fn excess(passed: &[u64]) -> f64 {
    (most_at_once(passed, RATE) - f64::from(BURST)) / f64::from(BURST)
}

fn assert_passes(passed: &[u64], from: u64, to: u64, when: &str) {
    assert!(passed_between(passed, from, to) > 0, "nothing passes {when}");
}

fn outage(breaks: impl FnOnce(&mut Redis), help: impl FnOnce(&mut Redis)) -> (Vec<u64>, Vec<Daemon>) {
    let mut scene = Scene::begin();
    breaks(&mut scene.redis);
    let cut_off = scene.await_cut_off();
    sleep(Duration::from_millis(1_500));
    let repaired = read_boot_nanos();
    help(&mut scene.redis);
    let (linked, late) = scene.await_linked();
    sleep(RECOVERED + Duration::from_secs(1));
    let (passed, hosts) = scene.end();
    assert_passes(&passed, cut_off, repaired, "in the outage");
    assert_passes(&passed, linked + RECOVERED.as_nanos() as u64, u64::MAX, "after it");
    // Each host has half of the rate and begins with half of the tokens. Hosts reconnect at random moments:
    // the first has only its half until the other is back.
    assert!(excess(&passed) <= 1.5, "{} bursts, the last {late:?} after the first", excess(&passed));
    (passed, hosts)
}

/// A host that has never reached Redis takes its share of `hosts_at_least`.
#[test]
fn new_host_in_outage_shares_with_hosts_at_least() {
    for (settings, part) in [("", 40), ("\nfleet: {hosts_at_least: 4}\n", 10)] {
        let mut plan = plan("redis://127.0.0.1:1", &rules("1/h", 40, ""), "");
        plan.settings.push_str(settings);
        let host = plan.start();
        assert_eq!(host.greeted().allowed("u1", 60), part, "{settings}");
        let most = 1.0 + part as f64 / 40.0;
        assert_shows_partition(&host, most, "this host does not reach Redis: if the others do");
    }
}

/// Asserts that operators see how much all hosts together may admit.
fn assert_shows_partition(host: &Daemon, most: f64, caller: &str) {
    let line = format!("partition    {caller}, all together may admit at most {most:.2} times a budget\n");
    wait_until(&line, || host.run("fleet").contains(&line));
    assert_eq!(metric(host, "tidegate_fleet_admitted_max_ratio"), most);
}

#[test]
fn shows_partition_until_all_hosts_are_counted() {
    let mut redis = Redis::start(&[]);
    let at_least_four = || {
        let mut plan = plan(&redis.url(), &rules("1/h", 40, ""), "");
        plan.settings.push_str("\nfleet: {hosts_at_least: 4}\n");
        plan.start()
    };
    let mut hosts = vec![at_least_four()];
    assert_shows_partition(&hosts[0], 1.75, "Redis misses 3 of 4 hosts: if they still run");
    // The alert and the doctor compare hosts with a heartbeat, not those of the settings.
    assert_eq!(["", "_alive"].map(|of| metric(&hosts[0], &format!("tidegate_fleet_hosts{of}"))), [4.0, 1.0]);
    assert!(hosts[0].run("fleet").contains("shares of 4 hosts by `fleet.hosts_at_least`, 1 alive"));
    hosts.extend((0..3).map(|_| at_least_four()));
    for host in &hosts {
        let ratio = || metric(host, "tidegate_fleet_admitted_max_ratio");
        wait_until("all are counted", || ratio() <= 1.0);
        assert!(!host.run("fleet").contains("partition"));
    }
    redis.kill();
    hosts.iter().for_each(|host| drop(host.await_log(&[CUT_OFF])));
    assert_shows_partition(&hosts[0], 1.25, "this host does not reach Redis: if the others do");
}

#[test]
fn survives_stopped_redis() {
    outage(|redis| redis.signal(Signal::STOP), |redis| redis.signal(Signal::CONT));
}

#[test]
fn survives_redis_restart_without_data() {
    let (_, hosts) = outage(Redis::kill, |redis| redis.restart(None));
    hosts.iter().for_each(|host| assert_eq!(count_log(host, "Redis HAS LOST ITS DATA"), 1, "{}", host.log()));
}

#[test]
fn survives_redis_demoted_to_replica() {
    let (_, hosts) =
        outage(|redis| redis.order("REPLICAOF 127.0.0.1 1"), |redis| redis.order("REPLICAOF NO ONE"));
    hosts[0].await_log(&["no connection to Redis", "readonly"]);
}

#[test]
fn survives_redis_out_of_memory() {
    outage(|redis| redis.order("CONFIG SET maxmemory 1"), |redis| redis.order("CONFIG SET maxmemory 0"));
}

/// Operators see why: a full Redis accepts connections, and answers.
#[test]
fn full_redis_is_named() {
    let redis = Redis::start(&[]);
    let host = plan(&redis.url(), &rules("10/s", 10, ""), "").start();
    host.await_log(&[LINKED]);
    redis.order("CONFIG SET maxmemory 1");
    host.await_log(&[CUT_OFF, "oom"]);
    let state = || {
        let fleet: Value = serde_json::from_str(&get(&host, "/fleet").body).unwrap();
        fleet["nodes"][0]["state"].as_str().unwrap().to_owned()
    };
    wait_until("it is full", || state() == "full");
    has(&host.run("status"), &["Redis refuses commands (oom: "]);
    let (code, report, _) = outcome_of(&host.doctor(&[]));
    assert!(code == Some(1) && report.contains("help: raise maxmemory"), "{report}");
    redis.order("CONFIG SET maxmemory 0");
    host.await_log(&["Redis answers again"]);
    wait_until("it is up", || state() == "up");
}

/// A host without permission probes again after half a minute: until then it reports the outage.
#[test]
fn falls_back_when_redis_revokes_rights() {
    let scene = Scene::begin();
    let before: Vec<usize> = scene.hosts.iter().map(|host| count_log(host, "noperm")).collect();
    scene.redis.order("ACL SETUSER default -evalsha");
    let cut_off = scene.await_cut_off();
    scene.hosts.iter().zip(before).for_each(|(host, before)| await_one_more(host, "noperm", before));
    sleep(Duration::from_millis(1_500));
    let (passed, _) = scene.end();
    assert_passes(&passed, cut_off, u64::MAX, "in the outage");
    assert!(excess(&passed) <= 1.5, "{} bursts", excess(&passed));
}
