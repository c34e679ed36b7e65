//! Who is spoken to, and who shares with whom: certificates and fleet secrets, with whole daemons.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::certificates::server;
use super::daemon::{BINARY, Daemon};
use super::hosts::{LINKED, ask_all, await_counted, count_log, most_at_once, passed, plan, rules};
use super::redis_server::{Redis, is_installed};

const RATE: f64 = 200.0;
const BURST: u32 = 100;

fn doctor(host: &Daemon) -> String {
    let mut command = Command::new(BINARY);
    command.args(["doctor", "--config"]).arg(host.plan.path("tidegate.yaml"));
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// One that goes by a certificate; requests are judged whatever it is.
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
    let said = doctor(&daemon);
    let expected = if is_good { "may call all that the scripts call" } else { word };
    assert!(said.contains(expected) && (is_good || said.contains("mend the certificate")), "{said}");
    let asked =
        ask_all(std::slice::from_ref(&daemon), 4, Duration::from_millis(5), Duration::from_millis(1_000));
    let at = passed(&asked);
    assert!(at.len() as f64 > RATE * 0.8, "it limits alone: {} passed", at.len());
    assert!(most_at_once(&at, RATE) <= f64::from(BURST) * 1.1 + RATE / 10.0, "{}", most_at_once(&at, RATE));
}

#[test]
fn a_certificate_that_is_not_good_is_refused_and_named_and_requests_are_judged() {
    if !is_installed() {
        return;
    }
    let redis = server("localhost", 2999);
    by_tls(&redis, "localhost", "ours.pem", LINKED);
    by_tls(&redis, "localhost", "theirs.pem", "authority");
    by_tls(&redis, "127.0.0.1", "ours.pem", "not for the host that the URL names");
    let expired = server("localhost", 2020);
    by_tls(&expired, "localhost", "ours.pem", "has expired");
}

/// A host that has two secrets, of which the first makes its keys.
fn with_secrets(redis: &Redis, first: u8, second: u8) -> Daemon {
    let plan = plan(&redis.url(), &rules("200/s", BURST, "on_miss: refuse"), "");
    fs::write(plan.path("secret"), [first; 32]).unwrap();
    fs::write(plan.path("other"), [second; 32]).unwrap();
    let two = plan.settings.replace("[secret]", "[secret, other]");
    plan.settings(&two).start()
}

/// What they admit together within a while, at most at once.
fn at_once(hosts: &[Daemon]) -> f64 {
    let asked = ask_all(hosts, 4, Duration::from_millis(5), Duration::from_millis(2_500));
    most_at_once(&passed(&asked), RATE)
}

#[test]
fn while_a_secret_is_replaced_each_of_the_two_has_a_budget_and_then_there_is_one() {
    if !is_installed() {
        return;
    }
    let redis = Redis::start(&[]);
    let hosts = [with_secrets(&redis, 1, 2), with_secrets(&redis, 2, 1)];
    await_counted(&hosts, 2);
    let [bound, stamps] = [f64::from(BURST), RATE / 20.0];
    // Each of them by itself keeps to the rule: both in the time of one are two budgets.
    let both = at_once(&hosts);
    assert!(both > 1.5 * bound, "one budget, although they know no key of each other: {both}");
    let asked = ask_all(&hosts, 4, Duration::from_millis(5), Duration::from_millis(1_500));
    for of_one in asked {
        let most = most_at_once(&passed(&[of_one]), RATE);
        assert!(most <= bound + stamps, "{most}");
    }
    // The last host comes to the new secret.
    let [mut old, new] = hosts;
    old.process.signal(15);
    assert_eq!(old.process.exit_code(), Some(0), "{}", old.log());
    fs::write(old.plan.path("secret"), [2; 32]).unwrap();
    fs::write(old.plan.path("other"), [1; 32]).unwrap();
    let hosts = [old.plan.start(), new];
    await_counted(&hosts, 2);
    let both = at_once(&hosts);
    assert!(both <= bound + stamps, "{both}");
}
