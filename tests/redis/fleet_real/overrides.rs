//! Tests that an operator's change on one host holds on all hosts.

use super::hosts::{metric, plan};
use crate::prelude::*;
use rustix::process::Signal;

/// Five requests of each user on each host, without refill during a test; and a budget of all hosts.
pub(crate) const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 1/day, burst: 5}
  - {name: shared, key: [tenant], rate: 1000/s, burst: 1000, scope: fleet}
";

const OF_HOST: &str = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1/day, burst: 5}]\n";

pub(crate) const ALLOW: u64 = 0;
pub(crate) const LIMIT: u64 = 1;

/// Returns the verdict for a request of this user; fails if it waits.
pub(crate) fn verdict(daemon: &Daemon, user: &str) -> u64 {
    let began = read_boot_nanos();
    let verdict = verdict_of(&daemon.greeted().ask(&hit(7, user)));
    assert!(read_boot_nanos() - began < 2_000_000_000, "a request waited");
    verdict
}

pub(crate) fn uses_up(daemon: &Daemon, user: &str) {
    (0..5).for_each(|_| assert_eq!(verdict(daemon, user), ALLOW));
    assert_eq!(verdict(daemon, user), LIMIT);
}

/// Returns the line with these words of the overrides in force on a host.
fn line(daemon: &Daemon, words: &str) -> Option<String> {
    let output = daemon.run("switch");
    output.lines().find(|line| line.contains(words) && !line.starts_with('2')).map(str::to_owned)
}

/// Waits until a host has the override: mostly within two seconds.
pub(crate) fn await_line(daemon: &Daemon, words: &str) -> String {
    eventually(&format!("it hears {words}"), || line(daemon, words))
}

fn await_no_line(daemon: &Daemon, words: &str) {
    wait_until(&format!("it hears no more of {words}"), || line(daemon, words).is_none());
}

/// A host that is connected to this Redis.
pub(crate) fn connected(redis: &Redis, rules: &str) -> Daemon {
    let host = plan(&redis.url(), rules, "").start();
    host.await_log(&["connected to Redis"]);
    host
}

fn two(redis: &Redis) -> [Daemon; 2] {
    [RULES, OF_HOST].map(|rules| connected(redis, rules))
}

#[test]
fn fleet_switch_applies_on_all_hosts_with_its_origin() {
    let redis = Redis::start(&[]);
    // One host shares a budget, the other none: both receive the override.
    let hosts = two(&redis);
    hosts.iter().for_each(|host| uses_up(host, "u1"));
    let output = hosts[0].run("switch per-user disabled --fleet --for 30m");
    has(&output, &["api/per-user: disabled until 2", ", on all hosts"]);
    let by = format!("by uid {} of host ", rustix::process::geteuid().as_raw());
    has(
        &await_line(&hosts[1], "api/per-user: disabled on all hosts until 2"),
        &[&by, "(without it: enforce)"],
    );
    hosts.iter().for_each(|host| assert_eq!(verdict(host, "u1"), ALLOW));
    // Log and list of changes of each host have user, time and change.
    for host in &hosts {
        host.await_log(&["switched api/per-user to disabled on all hosts until 2", " of host "]);
        assert!(host.run("status").contains("api/per-user: disabled on all hosts"));
        let page: Value = serde_json::from_str(&host.run("fleet --json")).unwrap();
        assert_eq!(page["overrides"]["switches"][0]["fleet"], true, "{page}");
        assert!(host.run("fleet").contains("api/per-user: disabled on all hosts"));
    }
    // A later switch of one host holds there.
    hosts[1].run("switch per-user enforce");
    assert_eq!([verdict(&hosts[0], "u1"), verdict(&hosts[1], "u1")], [ALLOW, LIMIT]);
    has(&await_line(&hosts[1], "disabled on all hosts until 2"), &["the later one holds"]);
    hosts[1].run("switch per-user --clear");
    // The other host revokes it for all.
    let output = hosts[1].run("switch per-user --clear --fleet");
    assert_eq!(output, "api/per-user: back to what each host says, on all hosts\n");
    await_no_line(&hosts[0], "api/per-user: disabled");
    hosts.iter().for_each(|host| assert_eq!(verdict(host, "u1"), LIMIT));
    has(&hosts[0].run("switch per-user --clear --fleet"), &["api/per-user: was not switched on all hosts"]);
}

#[test]
fn fleet_block_applies_on_all_hosts_by_digest() {
    let redis = Redis::start(&[]);
    let hosts = two(&redis);
    let output = hosts[0].run("block per-user user=ann@example.org --for 1h --fleet");
    has(&output, &["refused until 2", "on all hosts"]);
    await_line(&hosts[1], "api/per-user: ");
    for host in &hosts {
        assert_eq!(verdict(host, "ann@example.org"), LIMIT);
        assert_eq!(verdict(host, "bob"), ALLOW);
        assert!(!host.log().contains("ann@"), "{}", host.log());
    }
    let rules = redis.say("GET tg:{tm}:overrides");
    assert!(rules.contains("per-user") && !rules.contains("ann"), "{rules:?}");
    // Unblocking on one host does not lift a fleet block.
    let output = hosts[1].run("unblock per-user user=ann@example.org");
    assert!(output.contains("was not blocked; it is blocked on all hosts"), "{output}");
    assert_eq!(verdict(&hosts[1], "ann@example.org"), LIMIT);
    hosts[1].run("unblock per-user user=ann@example.org --fleet");
    await_no_line(&hosts[0], "blocked   api");
    hosts.iter().for_each(|host| assert_eq!(verdict(host, "ann@example.org"), ALLOW));
    // The same for a shared budget.
    hosts[0].run("block shared tenant=t1 --for 1h --fleet");
    let blocked = |tenant: &str| {
        let asked = json!([3, 9, "api", [["tenant", tenant]]]);
        verdict_of(&hosts[0].greeted().ask(&asked)) == LIMIT
    };
    assert!(blocked("t1") && !blocked("t2"));
    hosts[0].run("block shared tenant=t1 --for 1s --fleet");
    wait_until("it ends by itself", || !blocked("t1"));
    has(&hosts[0].fail("block per-user ip=x --for 5m --fleet", 1), &["its key is made of `user`"]);
}

#[test]
fn keeps_overrides_in_outage_and_restores_them_to_redis() {
    let mut redis = Redis::start(&[]);
    let hosts = two(&redis);
    hosts.iter().for_each(|host| uses_up(host, "u1"));
    hosts[0].run("switch per-user shadow --fleet");
    await_line(&hosts[1], "api/per-user: shadow on all hosts");
    redis.kill();
    has(&hosts[0].fail("switch per-user disabled --fleet", 1), &["Redis d"]);
    hosts.iter().for_each(|host| assert_eq!(verdict(host, "u1"), ALLOW));
    eventually("it is kept", || {
        let kept = fs::read(hosts[1].plan.path("state/fleet-overrides")).ok()?;
        String::from_utf8_lossy(&kept).contains("per-user").then_some(())
    });
    let [first, mut second] = hosts;
    second.process.signal(9);
    second.process.exit_code();
    let second = second.plan.start();
    assert_eq!(verdict(&second, "u1"), ALLOW);
    assert!(second.run("switch").contains("api/per-user: shadow on all hosts"), "{}", second.run("switch"));
    // Hosts restore a Redis without its data; a later host reads it there.
    redis.restart(None);
    wait_until("Redis has it again", || redis.say("GET tg:{tm}:overrides").contains("per-user"));
    let late = plan(&redis.url(), RULES, "").start();
    await_line(&late, "api/per-user: shadow on all hosts");
    late.run("switch per-user --clear --fleet");
    await_no_line(&first, "shadow on all hosts");
    await_no_line(&second, "shadow on all hosts");
}

#[test]
fn fleet_switch_fails_with_reason_without_redis() {
    let alone = Plan::new().start();
    for words in ["switch per-user shadow --fleet", "switch per-user --clear --fleet"] {
        has(&alone.fail(words, 1), &["name a Redis and a fleet secret in `redis` of the settings"]);
    }
    has(&alone.fail("block per-user user=u --for 5m --fleet", 1), &["this host shares nothing with others"]);
    let redis = Redis::start(&[]);
    let host = connected(&redis, RULES);
    has(&host.fail("switch --all disabled --fleet", 1), &["for a time only", "--for 30m"]);
    redis.signal(Signal::STOP);
    let output = host.fail("switch per-user shadow --fleet", 1);
    redis.signal(Signal::CONT);
    assert!(output.contains("Redis d"), "{output}");
    assert_eq!(verdict(&host, "u2"), ALLOW, "nobody waits for it");
}

/// Blocks leave room for switches, a status warns before it is full, and any host removes one by its listed digest.
#[test]
fn document_full_of_blocks_takes_a_switch_and_frees_by_digest() {
    let redis = Redis::start(&[]);
    let name = "r".repeat(60);
    let host = connected(&redis, &OF_HOST.replace("per-user", &name));
    let block = |user: u32| {
        let body =
            json!({"rule": name, "key": [["user", format!("u{user}")]], "for_s": 3_600, "fleet": true});
        post(&host, "/block", &body.to_string())
    };
    // On a busy machine Redis may not answer in time.
    let is_full = |answer: &Answer| answer.status != 200 && answer.error().contains("limit of 48 KiB");
    (0..1_000).map(block).find(is_full).expect("a limit");
    // A poll amid the blocks may have counted a part of them.
    wait_until("a poll counts all blocks", || {
        (0.98..=1.0).contains(&metric(&host, "tidegate_fleet_blocks_ratio"))
    });
    let status = host.run("status");
    assert!(["fill 98", "fill 99", "fill 100"].iter().any(|part| status.contains(part)), "{status}");
    host.run("switch --all shadow --for 1h --fleet");
    let line = await_line(&host, "blocked   api/");
    let digest = line.split(": ").nth(1).and_then(|rest| rest.split([',', ' ']).next()).unwrap();
    let output = host.fail(&format!("unblock {name} --digest {}0 --fleet", &digest[..31]), 1);
    assert!(output.contains("no key of api/") || digest.ends_with('0'), "{output}");
    let output = host.run(&format!("unblock {name} --digest {} --fleet", &digest[..12]));
    assert!(output.contains("is unblocked on all hosts"), "{output}");
    assert_eq!(block(5_000).status, 200, "there is room for one");
}

#[test]
fn concurrent_operators_lose_no_block() {
    let redis = Redis::start(&[]);
    let hosts = two(&redis);
    std::thread::scope(|scope| {
        for (number, host) in hosts.iter().enumerate() {
            scope.spawn(move || {
                for user in 0..8 {
                    host.run(&format!("block per-user user=u{number}-{user} --for 1h --fleet"));
                }
            });
        }
    });
    for host in &hosts {
        wait_until("all are heard", || {
            let output = host.run("switch");
            output.lines().filter(|line| line.starts_with("blocked   api/per-user")).count() == 16
        });
    }
}
