//! Tests certificates and fleet secrets with whole daemons.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use super::certificates::server;
use super::daemon::{Daemon, eventually, has, outcome_of};
use super::hosts::{
    LINKED, ask_all, assert_limits_alone, await_counted, count_log, metric, most_at_once, passed, plan, rules,
};
use super::http::get;
use super::leaving::end;
use super::redis_server::Redis;
use super::wire::{Wire, hit, verdict_of};

const RATE: f64 = 200.0;
const BURST: u32 = 100;

/// Connects a daemon by TLS, awaits its log line and checks that it limits.
fn by_tls(redis: &Redis, host: &str, ca: &str, word: &str) {
    let url = format!("rediss://{host}:{}", redis.port);
    let ca = redis.directory.path().join(ca);
    let more = format!(", ca_file: \"{}\"", ca.display());
    let daemon = plan(&url, &rules("200/s", BURST, "on_miss: admit"), &more).start();
    let is_good = word == LINKED;
    if is_good {
        daemon.await_log(&[LINKED]);
    } else {
        daemon.await_log(&["no connection to Redis", "tls", word]);
        assert_eq!(count_log(&daemon, LINKED), 0, "{}", daemon.log());
    }
    let (_, output, _) = outcome_of(&daemon.doctor(&[]));
    let expected = if is_good { "may call all that the scripts call" } else { word };
    assert!(output.contains(expected) && (is_good || output.contains("correct the certificate")), "{output}");
    assert_limits_alone(&daemon, RATE, BURST);
}

#[test]
fn decides_locally_and_reports_bad_certificate() {
    let redis = server("localhost", 2999);
    by_tls(&redis, "localhost", "ours.pem", LINKED);
    by_tls(&redis, "localhost", "theirs.pem", "authority");
    by_tls(&redis, "127.0.0.1", "ours.pem", "not for the host that the URL names");
    let expired = server("localhost", 2020);
    by_tls(&expired, "localhost", "ours.pem", "has expired");
}

/// Starts a host with this secret.
fn start(redis: &Redis, secret: u8) -> Daemon {
    let plan = plan(&redis.url(), &rules("200/s", BURST, "on_miss: refuse"), "");
    fs::write(plan.path("secret"), [secret; 32]).unwrap();
    plan.start()
}

/// Restarts the host with another secret.
fn again(mut host: Daemon, secret: u8) -> Daemon {
    end(std::slice::from_mut(&mut host));
    fs::write(host.plan.path("secret"), [secret; 32]).unwrap();
    host.plan.start()
}

/// Returns the peak admissions of all hosts together.
fn at_once(hosts: &[Daemon], millis: u64) -> f64 {
    let asked = ask_all(hosts, 4, Duration::from_millis(10), Duration::from_millis(millis));
    most_at_once(&passed(&asked), RATE)
}

/// Returns the number of hosts with another secret that a host knows.
fn others(host: &Daemon) -> u64 {
    let fleet: serde_json::Value = serde_json::from_str(&get(host, "/fleet").body).unwrap();
    fleet["secret"]["other_hosts"].as_u64().unwrap()
}

#[test]
fn different_secrets_separate_budgets_until_last_restart() {
    let redis = Redis::start(&[]);
    let hosts = [start(&redis, 1), start(&redis, 1)];
    await_counted(&hosts, 2);
    assert!(at_once(&hosts, 1_000) <= f64::from(BURST) + RATE / 20.0);
    assert_eq!(others(&hosts[0]), 0);
    let block = |host: &Daemon| {
        let (_, out, err) = host.outcome("block shared user=u8 --for 1h --fleet");
        out + &err
    };
    assert!(block(&hosts[0]).contains("on all hosts"));
    eventually("the other host hears of the block", || is_refused(&hosts[1], "u8").then_some(()));
    let [one, two] = hosts;
    let hosts = [again(one, 2), two];
    await_counted(&hosts, 2);
    for host in &hosts {
        host.await_log(&["ANOTHER FLEET SECRET"]);
        eventually("it counts the other host", || (others(host) == 1).then_some(()));
        assert!(host.run("fleet").contains("another one, or an older version, on 1 host"));
        assert!(host.run("status").contains("another fleet secret than this one"));
        let doctor = String::from_utf8(host.doctor(&[]).stdout).unwrap();
        assert!(doctor.contains("WRONG  fleet secret: another fleet secret, or an older version, on 1 host"));
        assert_eq!(metric(host, "tidegate_fleet_other_secret_hosts"), 1.0);
        assert_eq!(metric(host, "tidegate_fleet_admitted_max_ratio"), 2.0);
    }
    let most = at_once(&hosts, 1_000);
    assert!(most <= 2.0 * (f64::from(BURST) + RATE / 20.0) + RATE, "{most}");
    // Fleet overrides of the old secret do not hold on the restarted host.
    assert!(!is_refused(&hosts[0], "u8") && is_refused(&hosts[1], "u8"));
    assert!(block(&hosts[0]).contains("delete the key tg:{tm}:overrides"));
    assert!(block(&hosts[1]).contains("1 host with another fleet secret"));
    let [one, two] = hosts;
    let hosts = [one, again(two, 2)];
    await_counted(&hosts, 2);
    eventually("both have one secret", || hosts.iter().all(|host| others(host) == 0).then_some(()));
    let (mut stream, mut reply) = (UnixStream::connect(redis.socket()).unwrap(), [0; 4]);
    stream.write_all(b"DEL tg:{tm}:overrides\r\n").unwrap();
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b":1\r\n");
    eventually("the block is set again", || block(&hosts[0]).contains("on all hosts").then_some(()));
    eventually("the block holds", || hosts.iter().all(|host| is_refused(host, "u8")).then_some(()));
    at_once(&hosts, 500);
    assert!(at_once(&hosts, 1_000) <= f64::from(BURST) + RATE / 20.0, "one budget again");
}

/// A host without a readable secret limits alone, and operators see it.
#[test]
fn host_without_secret_needs_the_fleet() {
    let redis = Redis::start(&[]);
    let plan = plan(&redis.url(), &rules("200/s", BURST, ""), "");
    fs::remove_file(plan.path("secret")).unwrap();
    let host = plan.start();
    let [needed, linked] = ["needed", "linked"].map(|name| metric(&host, &format!("tidegate_fleet_{name}")));
    assert_eq!([needed, linked], [1.0, 0.0]);
    let status = host.run("status");
    has(&status, &["cannot read the fleet secret: No such file", "then systemctl restart tidegate"]);
}

/// Newer numbers of one host hold on all hosts, and the others say so.
#[test]
fn host_with_older_numbers_says_that_they_do_not_hold() {
    let redis = Redis::start(&[]);
    let start = |rate: &str| plan(&redis.url(), &rules(rate, BURST, "on_miss: refuse"), "").start();
    let one = start("200/s");
    await_counted(std::slice::from_ref(&one), 1);
    at_once(std::slice::from_ref(&one), 300);
    let other = start("100/s");
    let hosts = [one, other];
    await_counted(&hosts, 2);
    let says = |host: &Daemon| host.run("status").contains("newer numbers for api/shared than 200/s here");
    eventually("it is said", || {
        at_once(&hosts, 300);
        says(&hosts[0]).then_some(())
    });
    assert!(!says(&hosts[1]) && hosts[0].run("fleet").contains(" elsewhere"));
    // After a rollback elsewhere the newest numbers are those of this host.
    let path = hosts[1].plan.path("rules/api.yaml");
    fs::write(path, rules("200/s", BURST, "on_miss: refuse")).unwrap();
    hosts[1].run("reload");
    eventually("it adopts the newest version", || {
        at_once(&hosts, 300);
        hosts.iter().all(|host| !says(host) && !host.run("fleet").contains(" elsewhere")).then_some(())
    });
}

/// Returns whether all of many requests are refused: the first of a key always is, before tokens arrive.
fn is_refused(host: &Daemon, user: &str) -> bool {
    let mut wire = Wire::greeted(&host.socket());
    (0..20).all(|id| {
        sleep(Duration::from_millis(10));
        verdict_of(&wire.ask(&hit(id, user))) != 0
    })
}
