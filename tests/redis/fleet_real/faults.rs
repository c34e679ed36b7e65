//! Tests all failures of Redis: callers see no error and stay limited, and the budget recovers with Redis.

use super::hosts::{CUT_OFF, LINKED, count_log, hosts, metric, plan, rules};
use crate::prelude::*;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sends requests with this attribute until the end; returns when each reply came, and whether it allowed the request.
fn call(socket: &Path, key: &str, is_over: &AtomicBool) -> Vec<(u64, bool)> {
    let mut wire = Wire::greeted(socket);
    let mut replies = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        (0..4).for_each(|id| wire.send(&json!([3, id, "api", [[key, "u1"]]])));
        // An error instead of a verdict fails the test.
        replies
            .extend((0..4).map(|_| verdict_of(&wire.hear().unwrap()) == 0).map(|it| (read_boot_nanos(), it)));
        sleep(Duration::from_millis(16));
    }
    replies
}

/// Breaks and repairs Redis while two hosts serve callers of a fleet budget and of a host rule. Simulations bound how many
/// pass.
fn outage(breaks: impl FnOnce(&mut Redis), repairs: impl FnOnce(&mut Redis)) -> Vec<Daemon> {
    let mut redis = Redis::start(&[]);
    let hosts = hosts(2, &redis.url(), &rules("200/s", 100, "on_miss: refuse"));
    let is_over = Arc::new(AtomicBool::new(false));
    let start = |key: &'static str| {
        let of_host = |host: &Daemon| {
            let (socket, is_over) = (host.socket(), Arc::clone(&is_over));
            std::thread::spawn(move || call(&socket, key, &is_over))
        };
        hosts.iter().map(of_host).collect::<Vec<_>>()
    };
    let [of_budget, of_host] = ["user", "job"].map(start);
    // By tokens of Redis.
    let passes = |host: &Daemon| wait_until("requests pass", || host.greeted().allowed("u1", 5) > 0);
    hosts.iter().for_each(passes);
    breaks(&mut redis);
    hosts.iter().for_each(|host| drop(host.await_log(&[CUT_OFF])));
    let cut_off = read_boot_nanos();
    sleep(Duration::from_millis(1_500));
    let repaired = read_boot_nanos();
    repairs(&mut redis);
    for host in &hosts {
        wait_until("it hears Redis", || count_log(host, LINKED) > count_log(host, CUT_OFF));
        passes(host);
    }
    is_over.store(true, Ordering::Relaxed);
    let replies =
        |of: Vec<std::thread::JoinHandle<_>>| of.into_iter().flat_map(|caller| caller.join().unwrap());
    assert!(replies(of_host).all(|(_, passed)| passed), "a rule of the host refused");
    let is_in_outage = |(at, passed): (u64, bool)| passed && (cut_off..repaired).contains(&at);
    assert!(replies(of_budget).any(is_in_outage), "nothing passes in the outage");
    hosts
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
    let hosts = outage(Redis::kill, |redis| redis.restart(None));
    hosts.iter().for_each(|host| assert_eq!(count_log(host, "Redis HAS LOST ITS DATA"), 1, "{}", host.log()));
}

#[test]
fn survives_redis_demoted_to_replica() {
    let hosts = outage(|redis| redis.order("REPLICAOF 127.0.0.1 1"), |redis| redis.order("REPLICAOF NO ONE"));
    hosts[0].await_log(&["no connection to Redis", "readonly"]);
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
