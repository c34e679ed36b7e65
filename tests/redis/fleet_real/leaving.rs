//! Tests hosts that exit, and hosts with the same identity.

use super::hosts::{CUT_OFF, LINKED, count_log, hosts, plan, rules};
use crate::prelude::*;

/// Burst of a rate too slow to refill during a test.
const ONCE: u32 = 3_000;

fn once() -> String {
    rules("1/day", ONCE, "on_miss: refuse")
}

/// Returns the tokens left in all keys of Redis.
pub(crate) fn left(redis: &Redis) -> i64 {
    // Spaces separate arguments, but not lines of Lua.
    let script = "local\tn=0\nfor\t_,k\tin\tipairs(redis.call('KEYS','tg:*:q:*'))do\nlocal\tlevel=struct.unpack('<i8',string.sub(redis.call('GET',k),25,32))\nn=n+math.floor(level/1000000)\nend\nreturn\tn";
    let reply = redis.say(&format!("EVAL {script} 0"));
    reply.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{reply}"))
}

#[test]
fn restarts_give_no_token_or_share_twice() {
    let mut redis = Redis::start(&[]);
    let mut host = hosts(1, &redis.url(), &rules("20/day", 20, "wait: 50ms")).remove(0);
    let (mut spent, mut in_use) = (0, 0);
    let mut ask = |host: &Daemon, tries: u64| {
        spent += host.greeted().allowed("spent", 30);
        in_use += host.greeted().allowed("in-use", tries);
        (spent, in_use)
    };
    assert!(ask(&host, 12).0 > 0, "with Redis");
    host = host.stopped().start();
    ask(&host, 0);
    redis.kill();
    host.await_log(&[CUT_OFF]);
    ask(&host, 3);
    for restart in 0..3 {
        host = host.stopped().start();
        let passed = ask(&host, 30);
        assert!(passed.0 <= 20 && passed.1 <= 20, "{passed:?} after restart {restart}");
    }
}

/// Stops them as an operator does; each exits within a second on a busy machine too.
pub(crate) fn end(hosts: &mut [Daemon]) {
    hosts.iter().for_each(|host| host.process.signal(15));
    for host in hosts {
        assert_eq!(host.process.exit_code(), Some(0), "{}", host.log());
    }
}

#[test]
fn returns_unused_tokens_at_exit() {
    let redis = Redis::start(&[]);
    let mut hosts = hosts(3, &redis.url(), &once());
    let mut not_admitted = i64::from(ONCE);
    wait_until("tokens are borrowed", || {
        hosts.iter().for_each(|host| not_admitted -= host.greeted().allowed("u1", 20).cast_signed());
        left(&redis) < not_admitted
    });
    end(&mut hosts);
    assert_eq!(left(&redis), not_admitted);
}

#[test]
fn keeps_identity_across_restart_and_renames_copy() {
    let redis = Redis::start(&[]);
    let url = redis.url();
    let name = |daemon: &Daemon| fs::read(daemon.plan.path("state/fleet-identity")).unwrap()[8..24].to_vec();
    let first = plan(&url, &once(), "").start();
    first.await_log(&[LINKED]);
    let own = name(&first);
    let first = first.stopped();
    let copied = fs::read(first.path("state/fleet-identity")).unwrap();
    let again = first.start();
    again.await_log(&[LINKED]);
    assert_eq!(name(&again), own, "a restart");

    // Two daemons of one machine have the same file.
    let second = plan(&url, &once(), "");
    fs::write(second.path("state/fleet-identity"), copied).unwrap();
    let both = [again, second.start()];
    both[1].await_log(&[LINKED]);
    let others = eventually("they come apart", || {
        let names: Vec<_> = both.iter().map(name).collect();
        (names[0] != names[1]).then_some(names)
    });
    assert!(others.contains(&own), "one of them keeps its name");
    both.iter().for_each(|host| wait_until("both admit", || host.greeted().allowed("u1", 1) == 1));
    let renamed = both.iter().filter(|host| host.log().contains("takes a new one")).count();
    assert_eq!(renamed, 1);
}

#[test]
fn counts_hosts_with_fleet_rules_only() {
    let redis = Redis::start(&[]);
    let of_host = "domain: api\nlimits: [{name: shared, key: [user], rate: 5/s}]\n";
    let host = plan(&redis.url(), of_host, "").start();
    // It reads fleet overrides, and sends nothing about itself.
    host.await_log(&["connected to Redis"]);
    sleep(Duration::from_millis(1_200));
    assert_eq!((count_log(&host, LINKED), redis.say("DBSIZE")), (0, ":0\r\n".to_owned()), "{}", host.log());
    fs::write(host.plan.path("rules/api.yaml"), once()).unwrap();
    host.process.signal(1);
    host.await_log(&[LINKED]);
}
