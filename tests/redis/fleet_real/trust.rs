//! Who is spoken to, and who shares with whom: certificates and fleet secrets, with whole daemons.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::certificates::server;
use super::daemon::{BINARY, Daemon, Plan, eventually};
use super::hosts::{LINKED, ask_all, await_counted, count_log, most_at_once, passed, plan, rules};
use super::http::get;
use super::leaving::end;
use super::redis_server::{Redis, is_installed};
use super::wire::{Wire, hit, verdict_of};

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

/// The files of the settings, in their order, hold these secrets.
pub(crate) fn with_secrets(plan: Plan, secrets: &[u8]) -> Plan {
    let names = ["secret", "other"];
    for (name, secret) in names.iter().zip(secrets) {
        fs::write(plan.path(name), [*secret; 32]).unwrap();
    }
    let begins = plan.settings.find("fleet_secret_files: [").unwrap();
    let ends = begins + plan.settings[begins..].find(']').unwrap();
    let files = names[..secrets.len()].join(", ");
    let settings =
        format!("{}fleet_secret_files: [{files}{}", &plan.settings[..begins], &plan.settings[ends..]);
    plan.settings(&settings)
}

/// One that has this secret alone.
fn start(redis: &Redis, secret: u8) -> Daemon {
    let plan = plan(&redis.url(), &rules("200/s", BURST, "on_miss: refuse"), "");
    with_secrets(plan, &[secret]).start()
}

/// The same host with other secrets.
fn again(mut host: Daemon, secrets: &[u8]) -> Daemon {
    end(std::slice::from_mut(&mut host));
    with_secrets(host.plan, secrets).start()
}

/// What they admit together within a while, at most at once.
fn at_once(hosts: &[Daemon], millis: u64) -> f64 {
    let asked = ask_all(hosts, 4, Duration::from_millis(5), Duration::from_millis(millis));
    most_at_once(&passed(&asked), RATE)
}

pub(crate) fn secret(host: &Daemon, field: &str) -> String {
    let told: serde_json::Value = serde_json::from_str(&get(host, "/fleet").body).unwrap();
    told["secret"][field].as_str().unwrap_or_default().to_owned()
}

/// What a host says when it has turned.
pub(crate) const TURNS: &str = "all hosts make keys with another fleet secret from now on";

#[test]
fn while_a_secret_is_replaced_there_is_one_budget_and_blocks_hold() {
    if !is_installed() {
        return;
    }
    let redis = Redis::start(&[]);
    let is_one = |hosts: &[Daemon], millis: u64, when: &str| {
        let most = at_once(hosts, millis);
        assert!(most <= f64::from(BURST) + RATE / 20.0, "{most} at once {when}");
    };
    let hosts = [start(&redis, 1), start(&redis, 1)];
    await_counted(&hosts, 2);
    let old = secret(&hosts[0], "uses");
    let [one, two] = hosts;
    // As long as one lacks the next one, both go on with the old one.
    let hosts = [again(one, &[2, 1]), two];
    await_counted(&hosts, 2);
    is_one(&hosts, 1_000, "while one has both");
    assert_eq!([secret(&hosts[0], "uses"), secret(&hosts[1], "uses")], [old.clone(), old.clone()]);
    eventually("it says who lacks the next one", || {
        secret(&hosts[0], "next").contains("1 do not").then_some(())
    });
    for who in ["u1", "u8"] {
        let said = run(&hosts[0], &["block", "shared", &format!("user={who}"), "--for", "1h", "--fleet"]);
        assert!(said.contains("on all hosts"), "{said}");
    }
    assert!(run(&hosts[0], &["unblock", "shared", "user=u1", "--fleet"]).contains("is free"));
    let [one, two] = hosts;
    let hosts = [one, again(two, &[2, 1])];
    hosts[1].await_log(&[LINKED]);
    is_one(&hosts, 6_000, "while they turn");
    for host in &hosts {
        host.await_log(&[TURNS]);
        assert_eq!(count_log(host, TURNS), 1, "{}", host.log());
        assert_ne!(secret(host, "uses"), old);
        assert!(is_refused(host, "u8") && !is_refused(host, "u9"), "the block holds, and for nobody else");
    }
    // Then the old one is of no use.
    let [one, two] = hosts;
    let hosts = [again(one, &[2]), two];
    await_counted(&hosts, 2);
    is_one(&hosts, 1_000, "when one has the old one no more");
    assert!(
        is_refused(&hosts[0], "u8") && !is_refused(&hosts[0], "u9"),
        "it holds under the new one as well"
    );
}

#[test]
fn a_host_that_does_not_have_the_secret_in_use_says_so() {
    if !is_installed() {
        return;
    }
    let redis = Redis::start(&[]);
    let hosts = [start(&redis, 1)];
    await_counted(&hosts, 1);
    let early = start(&redis, 2);
    early.await_log(&["DOES NOT HAVE THE FLEET SECRET THAT IS IN USE"]);
    eventually("it is told", || secret(&early, "next").contains("does not have").then_some(()));
    assert!(run(&early, &["fleet"]).contains("does not have the fleet secret that is in use"));
    assert!(run(&early, &["status"]).contains("does not have the fleet secret that is in use"));
    assert_eq!(secret(&hosts[0], "lacks"), "");
}

/// Whether none of many requests passes: the first of a key is refused before any token is there.
fn is_refused(host: &Daemon, user: &str) -> bool {
    let mut wire = Wire::greeted(&host.socket());
    (0..20).all(|id| {
        sleep(Duration::from_millis(10));
        verdict_of(&wire.ask(&hit(id, user))) != 0
    })
}

/// What a command says.
fn run(host: &Daemon, args: &[&str]) -> String {
    let mut command = Command::new(BINARY);
    command.args(args).arg("--admin").arg(host.plan.path("t.admin.sock"));
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}
