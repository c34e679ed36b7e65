//! Tests keys over several servers: a cluster that moves a slot, and servers of which one is down for a
//! while.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use tidegate::clock::read_boot_nanos;

use super::daemon::{Daemon, Plan, eventually};
use super::hosts::{CUT_OFF, Caller, LINKED, await_counted, count_log, most_at_once, passed, rules};
use super::leaving::{end, left, once};
use super::redis_cluster::Three;
use super::redis_server::Redis;

fn host(redis: &str, rules: &str) -> Daemon {
    let plan = Plan::new().rules("api.yaml", rules);
    fs::write(plan.path("secret"), [7; 32]).unwrap();
    plan.settings(&format!("redis: {{{redis}, fleet_secret_files: [secret]}}")).start()
}

/// Starts three daemons; each is linked and has counted the others.
fn three_hosts(redis: &str, rules: &str) -> Vec<Daemon> {
    let hosts: Vec<Daemon> = (0..3).map(|_| host(redis, rules)).collect();
    await_counted(&hosts, 3);
    hosts
}

fn ask(hosts: &[Daemon], caller: &'static str, pause: Duration) -> Vec<Caller> {
    hosts.iter().map(|host| Caller::start(host.socket(), caller, 1, pause)).collect()
}

/// Tokens that three hosts hold for a second of this demand.
const LAPSED_MAX: i64 = 750;

/// Requests of each host after the move: more than a second of them.
const ASKED_AFTER: usize = 125;

#[test]
fn moved_slot_conserves_tokens() {
    let cluster = Three::start();
    let url = format!("url: \"redis://127.0.0.1:{}\", cluster: true", cluster.0[0].port);
    let mut hosts = three_hosts(&url, &once());
    let callers = ask(&hosts, "u1", Duration::from_millis(8));
    let cells = |server: &Redis| server.say("KEYS tg:*:q:*").lines().nth(2).map(str::to_owned);
    let cell = eventually("the key is in Redis", || cluster.0.iter().find_map(cells));
    let tag = cell.split(['{', '}']).nth(1).unwrap();
    let (slot, from) = (cluster.slot(tag), cluster.home(tag));
    let to = (from + 1) % 3;
    cluster.begin_move(&slot, from, to);
    sleep(Duration::from_millis(300));
    // Moves keys one by one, while commands use them all.
    let keys = cluster.0[from].say(&format!("CLUSTER GETKEYSINSLOT {slot} 1000"));
    let keys: Vec<&str> = keys.lines().filter(|line| line.starts_with("tg:")).collect();
    assert!(keys.len() >= 2, "a cell and what is beside it: {keys:?}");
    for key in keys {
        cluster.0[from].order(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.0[to].port));
        sleep(Duration::from_millis(20));
    }
    cluster.end_move(&slot, from, to);
    // By requests, not by time: on a busy machine a caller may send a few in a second.
    callers.iter().for_each(|caller| caller.await_more(ASKED_AFTER));
    let asked: Vec<_> = callers.into_iter().map(Caller::stop).collect();
    for host in &hosts {
        eventually("Redis is heard", || (count_log(host, LINKED) > count_log(host, CUT_OFF)).then_some(()));
    }
    sleep(Duration::from_millis(500));
    end(&mut hosts);
    let (admitted, left) = (passed(&asked).len(), left(&cluster.0[to]));
    let all: usize = asked.iter().map(Vec::len).sum();
    eprintln!("{admitted} of {all} passed, {left} left");
    // The first requests find no tokens.
    assert!(admitted > all / 2, "{admitted} of {all}");
    // The tokens of a host without CPU time for two seconds have expired.
    let not_admitted = 3_000 - i64::try_from(admitted).unwrap();
    assert!((not_admitted - LAPSED_MAX..=not_admitted).contains(&left), "{left} of {not_admitted}");
}

/// The other masters go on serving their slots.
#[test]
fn loss_of_one_master_of_a_cluster_is_an_outage() {
    let mut cluster = Three::start();
    for server in &cluster.0 {
        server.order("CONFIG SET cluster-require-full-coverage no");
    }
    let url = format!("url: \"redis://127.0.0.1:{}\", cluster: true", cluster.0[0].port);
    let host = &three_hosts(&url, &rules("100/s", 100, ""))[0];
    cluster.0[1].kill();
    host.await_log(&[CUT_OFF, "down"]);
    cluster.0[1].restart(None);
    host.await_log(&["Redis answers again"]);
}

#[test]
fn survives_loss_of_one_of_three_servers() {
    const BURST: u32 = 50;
    const RATE: f64 = 100.0;
    let mut servers: [Redis; 3] = std::array::from_fn(|_| Redis::start(&[]));
    let urls = servers.each_ref().map(|server| format!("\"{}\"", server.url())).join(", ");
    let hosts = three_hosts(&format!("urls: [{urls}]"), &rules("100/s", BURST, "on_miss: refuse"));
    let caller = ["u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8"];
    // About twice the rate of each key.
    let callers: Vec<_> =
        caller.iter().map(|caller| ask(&hosts, caller, Duration::from_millis(15))).collect();
    sleep(Duration::from_secs(1));
    let has_cells = |server: &&Redis| server.say("KEYS tg:*:q:*") != "*0\r\n";
    let with_cells = servers.iter().filter(has_cells).count();
    servers[1].kill();
    hosts.iter().for_each(|host| drop(host.await_log(&[CUT_OFF])));
    sleep(Duration::from_secs(1));
    servers[1].restart(None);
    let hearing = || hosts.iter().filter(|host| count_log(host, LINKED) > count_log(host, CUT_OFF)).count();
    eventually("one hears all of them", || (hearing() > 0).then_some(()));
    let first = read_boot_nanos();
    eventually("all hear all of them", || (hearing() == hosts.len()).then_some(()));
    // A late host has its third, while a linked host is granted all of the rate.
    let late = (read_boot_nanos() - first) as f64 / 1e9 * RATE * 2.0 / 3.0;
    sleep(Duration::from_secs(2));
    assert!(with_cells >= 2, "eight keys are spread over three servers: {with_cells}");
    for (caller, callers) in caller.iter().zip(callers) {
        let asked: Vec<_> = callers.into_iter().map(Caller::stop).collect();
        let at = passed(&asked);
        let most = most_at_once(&at, RATE);
        let lasted = (at.last().unwrap() - at.first().unwrap()) as f64 / 1e9;
        let used = at.len() as f64 / (f64::from(BURST) + RATE * lasted);
        eprintln!("{caller}: {most:.0} at once, {:.0} % used", used * 100.0);
        assert!(most <= 2.5 * f64::from(BURST) + late, "{caller}: {most}, {late} for who was late");
        assert!(used > 0.0, "{caller}: {used}");
    }
}
