//! Tests which numbers of a rule hold for a key in use: after reloads, restarts, and under other entries.

use super::hosts::{assert_passed, hosts, plan, rules};
use crate::prelude::*;

/// A rule with these overrides, so slow that nothing is earned meanwhile.
fn with_overrides(overrides: &str) -> String {
    format!(
        "domain: api\nlimits: [{{name: shared, key: [user], rate: 9/h, scope: fleet, fleet: {{wait: 50ms}}, overrides: [{overrides}]}}]\n"
    )
}

fn reload(host: &Daemon, rules: &str) {
    fs::write(host.plan.path("rules/api.yaml"), rules).unwrap();
    host.run("reload");
}

/// Newer numbers of one host hold on all hosts, and the others say so; every host says that there are others.
#[test]
fn host_with_older_numbers_says_that_they_do_not_hold() {
    let redis = Redis::start(&[]);
    let rules = |rate: &str| rules(rate, 100, "on_miss: refuse");
    let start = |rate: &str| plan(&redis.url(), &rules(rate), "").start();
    let are_outdated = |host: &Daemon| {
        host.greeted().allowed("u1", 20);
        host.run("status").contains("newer numbers for api/shared than 200/s here")
            && host.run("fleet").contains(" elsewhere")
    };
    let has_others = |host: &&Daemon| {
        host.run("fleet").contains("\nrules        other numbers, or an older version, on 1 host")
    };
    let one = start("200/s");
    wait_until("its numbers are known", || one.greeted().allowed("u1", 20) > 0);
    let other = start("100/s");
    wait_until("it is said", || !are_outdated(&other) && are_outdated(&one));
    wait_until("both say so", || [&one, &other].iter().all(has_others));
    // After a rollback elsewhere the newest numbers are those of this host.
    reload(&other, &rules("200/s"));
    wait_until("it adopts the newest version", || !are_outdated(&other) && !are_outdated(&one));
    wait_until("both have the same", || ![&one, &other].iter().any(has_others));
}

/// A new first entry moves all others: callers in use keep what they have used, and get the numbers of their entry.
#[test]
fn entry_that_is_added_holds_for_its_caller_alone() {
    let redis = Redis::start(&[]);
    let big = "{match: {user: big}, rate: 30/h}";
    let hosts = hosts(2, &redis.url(), &with_overrides(big));
    let mut wires = [0, 1].map(|host: usize| hosts[host].greeted());
    for (user, used) in [("big", 20), ("lowered", 4), ("raised", 8)] {
        assert_passed(&hosts, wires[0].allowed(user, used), used..=used);
    }
    let more = "{match: {user: lowered}, rate: 2/h}, {match: {user: raised}, rate: 3600000/h, burst: 12}";
    hosts.iter().for_each(|host| reload(host, &with_overrides(&format!("{more}, {big}"))));
    // The numbers hold as soon as their version is known.
    eventually("the raised caller is raised", || (wires[1].allowed("raised", 30) > 20).then_some(()));
    let left = |wires: &mut [Wire; 2], user: &str| wires[1].allowed(user, 15) + wires[0].allowed(user, 15);
    assert_passed(&hosts, left(&mut wires, "lowered"), 2..=2);
    assert_passed(&hosts, left(&mut wires, "big"), 10..=10);
}

/// A caller that sends another attribute has one bucket with the numbers of the entry that it matches.
#[test]
fn numbers_are_those_of_the_entry_that_a_request_matches() {
    let redis = Redis::start(&[]);
    let gold = "{match: {plan: gold}, rate: 3600000/h, burst: 20}";
    let mut hosts = hosts(2, &redis.url(), &with_overrides(gold));
    let mut wires = [0, 1].map(|host: usize| hosts[host].greeted());
    assert_passed(&hosts, wires[0].allowed("u", 20), 9..=9);
    let gold = |id: u64| json!([3, id, "api", [["user", "u"], ["plan", "gold"]]]);
    eventually("gold earns", || {
        let passed = (0..30).filter(|id| verdict_of(&wires[1].ask(&gold(*id))) == 0).count();
        (passed > 20).then_some(())
    });
    // Its next sync would earn again, also one that Redis has not read yet.
    hosts.pop();
    redis.say("PING");
    // The bucket is cut to what the other entry holds. Its host may have borrowed a quarter of that before.
    assert_passed(&hosts, wires[0].allowed("u", 30), 0..=11);
}

/// A restart that takes numbers back to earlier ones is a change, as a reload would be.
#[test]
fn earlier_numbers_hold_after_restart() {
    let redis = Redis::start(&[]);
    let small = with_overrides("");
    let large = small.replace("9/h", "3600000/h, burst: 20");
    let mut host = plan(&redis.url(), &small, "").start();
    assert_passed(std::slice::from_ref(&host), host.greeted().allowed("u", 20), 9..=9);
    let mut stored = None;
    for (rules, passes) in [(&large, 21..=30), (&small, 0..=9)] {
        let versions = host.plan.path("state/fleet-versions");
        let changed = || fs::read(&versions).ok().filter(|versions| stored.as_ref() != Some(versions));
        stored = Some(eventually("the versions are stored", changed));
        let plan = host.stopped();
        fs::write(plan.path("rules/api.yaml"), rules).unwrap();
        host = plan.start();
        eventually("its numbers hold", || passes.contains(&host.greeted().allowed("u", 30)).then_some(()));
    }
}

/// The numbers of a rule are the same, but not whose they are; and a rule that was away has no newer numbers than its last.
#[test]
fn swapped_and_restored_numbers_hold() {
    let redis = Redis::start(&[]);
    let large = "rate: 3600000/h, burst: 20";
    let swap = |one: &str, other: &str| {
        with_overrides(&format!("{{match: {{user: one}}, {one}}}, {{match: {{user: other}}, {other}}}"))
    };
    let hosts = hosts(2, &redis.url(), &swap("rate: 5/h", large));
    let mut wires = [0, 1].map(|host: usize| hosts[host].greeted());
    let mut passes = |user: &str, few: bool| {
        eventually("the numbers hold", || {
            let passed = wires[0].allowed(user, 30) + wires[1].allowed(user, 30);
            (if few { passed <= 5 } else { passed > 40 }).then_some(())
        });
    };
    passes("one", true);
    passes("other", false);
    for (rules, is_large) in [
        (swap(large, "rate: 5/h"), Some(true)),
        (swap("rate: 5/h", large), Some(false)),
        (with_overrides("").replace("scope: fleet, fleet: {wait: 50ms}", "scope: host"), None),
        (swap(large, "rate: 5/h"), Some(true)),
    ] {
        hosts.iter().for_each(|host| reload(host, &rules));
        if let Some(is_large) = is_large {
            passes("one", !is_large);
            passes("other", is_large);
        }
    }
}
