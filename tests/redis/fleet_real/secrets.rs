//! Tests certificates and fleet secrets with whole daemons.

use super::certificates::server;
use super::hosts::{
    LINKED, ask_all, assert_limits_alone, await_counted, count_log, metric, most_at_once, passed, plan, rules,
};
use crate::prelude::*;

const RATE: f64 = 200.0;
pub(super) const BURST: u32 = 100;

#[test]
fn decides_locally_and_reports_bad_certificate() {
    let redis = server("localhost", 2999);
    for (ca, is_good) in [("ours.pem", true), ("theirs.pem", false)] {
        let more = format!(", ca_file: \"{}\"", redis.directory.path().join(ca).display());
        let url = format!("rediss://localhost:{}", redis.port);
        let daemon = plan(&url, &rules("200/s", BURST, "on_miss: admit"), &more).start();
        let (_, output, _) = if is_good {
            daemon.await_log(&[LINKED]);
            outcome_of(&daemon.doctor(&[]))
        } else {
            daemon.await_log(&["no connection to Redis", "tls", "authority"]);
            assert_eq!(count_log(&daemon, LINKED), 0, "{}", daemon.log());
            outcome_of(&daemon.doctor(&[]))
        };
        let expected = if is_good { "may call all that the scripts call" } else { "correct the certificate" };
        has(&output, &[expected]);
        assert_limits_alone(&daemon, RATE, BURST);
    }
}

fn start(redis: &Redis, secret: u8) -> Daemon {
    let plan = plan(&redis.url(), &rules("200/s", BURST, "on_miss: refuse"), "");
    fs::write(plan.path("secret"), [secret; 32]).unwrap();
    plan.start()
}

fn again(host: Daemon, secret: u8) -> Daemon {
    let plan = host.stopped();
    fs::write(plan.path("secret"), [secret; 32]).unwrap();
    plan.start()
}

/// Returns the peak admissions of all hosts together.
pub(super) fn at_once(hosts: &[Daemon], millis: u64) -> f64 {
    let asked = ask_all(hosts, 4, Duration::from_millis(10), Duration::from_millis(millis));
    most_at_once(&passed(&asked), RATE)
}

/// Returns the number of hosts with another secret that a host knows.
fn others(host: &Daemon) -> u64 {
    let fleet: Value = serde_json::from_str(&get(host, "/fleet").body).unwrap();
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
    wait_until("the other host hears of the block", || is_refused(&hosts[1], "u8"));
    let [one, two] = hosts;
    let hosts = [again(one, 2), two];
    await_counted(&hosts, 2);
    for host in &hosts {
        host.await_log(&["ANOTHER FLEET SECRET"]);
        wait_until("it counts the other host", || others(host) == 1);
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
    wait_until("both have one secret", || hosts.iter().all(|host| others(host) == 0));
    let (mut stream, mut reply) = (UnixStream::connect(redis.socket()).unwrap(), [0; 4]);
    stream.write_all(b"DEL tg:{tm}:overrides\r\n").unwrap();
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b":1\r\n");
    wait_until("the block is set again", || block(&hosts[0]).contains("on all hosts"));
    wait_until("the block holds", || hosts.iter().all(|host| is_refused(host, "u8")));
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

/// Returns whether all of many requests are refused: the first of a key always is, before tokens arrive.
fn is_refused(host: &Daemon, user: &str) -> bool {
    let mut wire = Wire::greeted(&host.socket());
    (0..20).all(|id| {
        sleep(Duration::from_millis(10));
        verdict_of(&wire.ask(&hit(id, user))) != 0
    })
}
