//! Tests certificates and fleet secrets with whole daemons.

use super::certificates::server;
use super::hosts::{await_counted, metric, plan, rules};
use crate::prelude::*;

#[test]
fn decides_locally_and_reports_bad_certificate() {
    let redis = server("localhost", 2999);
    let more = format!(", ca_file: \"{}\"", redis.directory.path().join("theirs.pem").display());
    let url = format!("rediss://localhost:{}", redis.port);
    let daemon = plan(&url, &rules("1/h", 40, ""), &more).start();
    daemon.await_log(&["no connection to Redis", "tls", "authority"]);
    assert_eq!(daemon.greeted().allowed("u1", 60), 40, "it limits alone");
    has(&outcome_of(&daemon.doctor(&[])).1, &["correct the certificate"]);
}

fn start(plan: Plan, secret: u8) -> Daemon {
    fs::write(plan.path("secret"), [secret; 32]).unwrap();
    plan.start()
}

/// Returns the number of hosts with another secret that a host knows.
fn others(host: &Daemon) -> u64 {
    get(host, "/fleet").json()["secret"]["other_hosts"].as_u64().unwrap()
}

/// Returns whether a request of `u8` is refused for as long as a block lasts.
fn is_blocked(host: &Daemon) -> bool {
    host.greeted().ask(&hit(7, "u8"))[8].as_u64() > Some(3_000_000_000)
}

/// Simulations test the budgets of hosts with different secrets.
#[test]
fn different_secrets_separate_overrides_until_last_restart() {
    let redis = Redis::start(&[]);
    let [one, two] = [(); 2].map(|()| start(plan(&redis.url(), &rules("200/s", 100, ""), ""), 1));
    let block = |host: &Daemon| {
        let (_, out, err) = host.outcome("block shared user=u8 --for 1h --fleet");
        out + &err
    };
    wait_until("Redis is heard", || block(&one).contains("on all hosts"));
    wait_until("the other host hears of the block", || is_blocked(&two));
    let hosts = [start(one.stopped(), 2), two];
    await_counted(&hosts, 2);
    for host in &hosts {
        host.await_log(&["ANOTHER FLEET SECRET"]);
        wait_until("it counts the other host", || others(host) == 1);
        assert!(host.run("fleet").contains("another one, or an older version, on 1 host"));
        assert!(host.run("status").contains("another fleet secret than this one"));
        let (_, report, _) = outcome_of(&host.doctor(&[]));
        has(&report, &["WRONG  fleet secret: another fleet secret, or an older version, on 1 host"]);
        assert_eq!(metric(host, "tidegate_fleet_other_secret_hosts"), 1.0);
        assert_eq!(metric(host, "tidegate_fleet_admitted_max_ratio"), 2.0);
    }
    // Fleet overrides of the old secret do not hold on the restarted host.
    assert_eq!(hosts.each_ref().map(is_blocked), [false, true]);
    assert!(block(&hosts[0]).contains("delete the key tg:{tm}:overrides"));
    assert!(block(&hosts[1]).contains("1 host with another fleet secret"));
    let [one, two] = hosts;
    let hosts = [one, start(two.stopped(), 2)];
    wait_until("both have one secret", || hosts.iter().all(|host| others(host) == 0));
    redis.order("DEL tg:{tm}:overrides");
    wait_until("the block is set again", || block(&hosts[0]).contains("on all hosts"));
    wait_until("the block holds", || hosts.iter().all(is_blocked));
}

/// A host without a readable secret limits alone, and operators see it.
#[test]
fn host_without_secret_needs_the_fleet() {
    let redis = Redis::start(&[]);
    let plan = plan(&redis.url(), &rules("200/s", 100, ""), "");
    fs::remove_file(plan.path("secret")).unwrap();
    let host = plan.start();
    let [needed, linked] = ["needed", "linked"].map(|name| metric(&host, &format!("tidegate_fleet_{name}")));
    assert_eq!([needed, linked], [1.0, 0.0]);
    let status = host.run("status");
    has(&status, &["cannot read the fleet secret: No such file", "then systemctl restart tidegate"]);
}
