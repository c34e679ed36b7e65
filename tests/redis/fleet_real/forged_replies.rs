//! Tests false fleet overrides in Redis: rules of `scope: host` stay in force, and the alarm shows.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{FleetChange, Mode, RuleName, Switch, SwitchOrigin, Target};
use tidegate::fleet::overrides::OverridesDocument;
use tidegate::fleet::secrets::OverridesKey;

use super::hosts::{metric, plan};
use super::liar::Liar;
use super::overrides::{ALLOW, LIMIT, RULES, await_line, await_no_line, connected, uses_up, verdict};
use crate::prelude::*;

const KEY: &str = "tg:{tm}:overrides";

fn key() -> OverridesKey {
    OverridesKey::of_secret(&[7; 32])
}

/// Returns Unix time, which documents use for expiry.
#[allow(clippy::disallowed_methods, reason = "a test has no clock of the daemon's")]
fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    Now { at: Timestamp::from_nanos(u64::try_from(unix).unwrap()), utc_offset_nanos: 0 }
}

fn switch(target: Target, until: Option<Duration>) -> FleetChange {
    let until = until.map(|lasts| now().at.after(lasts));
    FleetChange::Switch(Switch {
        target,
        mode: Mode::Disabled,
        until,
        set_at: now().at,
        by: SwitchOrigin::User(0),
    })
}

fn per_user() -> Target {
    Target::Rule(RuleName { domain: "api".into(), rule: "per-user".into() })
}

fn after(known: &OverridesDocument, change: &FleetChange, key: &OverridesKey) -> OverridesDocument {
    known.after(change, &[9; 16], key, now()).unwrap().unwrap()
}

/// Writes any bytes to the key, as another client would.
fn put(redis: &Redis, bytes: &[u8]) {
    let mut stream = UnixStream::connect(redis.socket()).unwrap();
    write!(stream, "*3\r\n$3\r\nSET\r\n${}\r\n{KEY}\r\n${}\r\n", KEY.len(), bytes.len()).unwrap();
    stream.write_all(bytes).unwrap();
    stream.write_all(b"\r\n").unwrap();
    let mut reply = [0; 5];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+OK\r\n");
}

fn rejected(host: &Daemon, reason: &str) -> f64 {
    metric(host, &format!("tidegate_fleet_overrides_rejected_total{{reason=\"{reason}\"}}"))
}

fn version(host: &Daemon) -> f64 {
    metric(host, "tidegate_fleet_overrides_version")
}

fn await_version(host: &Daemon, expected: u64) {
    wait_until(&format!("version {expected}"), || version(host) == expected as f64);
}

/// Starts a host that has disabled `per-user` for all and enabled it again: the key `old` has the first of
/// the two documents.
fn deceived(redis: &Redis) -> Daemon {
    let host = connected(redis, RULES);
    host.run("switch per-user disabled --fleet --for 1h");
    redis.order(&format!("COPY {KEY} old"));
    host.run("switch per-user --clear --fleet");
    redis.order(&format!("COPY {KEY} new"));
    uses_up(&host, "u1");
    host
}

fn is_restored(redis: &Redis) -> bool {
    let is_string = redis.say(&format!("TYPE {KEY}")) == "+string\r\n";
    is_string && redis.say(&format!("GET {KEY}")) == redis.say("GET new")
}

#[test]
fn host_rules_limit_for_any_redis_reply() {
    let redis = Redis::start(&[]);
    let host = deceived(&redis);
    await_version(&host, 2);
    let stranger = OverridesKey::of_secret(&[8; 32]);
    let foreign = after(&OverridesDocument::default(), &switch(per_user(), None), &stranger).bytes;
    let lies: [(&str, &str, &dyn Fn()); 10] = [
        ("stale", "an older document", &|| redis.order(&format!("COPY old {KEY} REPLACE"))),
        ("forged", "garbage", &|| put(&redis, b"everything: disabled")),
        ("forged", "the document of another secret", &|| put(&redis, &foreign)),
        ("forged", "no MAC", &|| put(&redis, &foreign[..foreign.len() - 32])),
        ("forged", "one byte too few", &|| copy(&redis, "redis.call('get',KEYS[2]):sub(1,-2)")),
        ("forged", "a higher version", &|| {
            copy(&redis, "'\\0\\0\\0\\0\\0\\0\\0\\9'..redis.call('get',KEYS[2]):sub(9)");
        }),
        ("forged", "the MAC of another document", &|| {
            copy(&redis, "redis.call('get',KEYS[2]):sub(1,-33)..redis.call('get','new'):sub(-32)");
        }),
        ("forged", "the version of another document", &|| {
            copy(&redis, "redis.call('get','new'):sub(1,8)..redis.call('get',KEYS[2]):sub(9)");
        }),
        ("unreadable", "two megabytes", &|| put(&redis, &vec![b'x'; 2 << 20])),
        ("unreadable", "a list", &|| {
            redis.order(&format!("DEL {KEY}"));
            redis.order(&format!("LPUSH {KEY} x"));
        }),
    ];
    for (reason, what, lie) in lies {
        let before = rejected(&host, reason);
        lie();
        wait_until(&format!("{what} is rejected"), || rejected(&host, reason) > before);
        assert_eq!(verdict(&host, "u1"), LIMIT, "{what}");
        wait_until(&format!("{what} is replaced"), || is_restored(&redis));
        assert_eq!((verdict(&host, "u1"), version(&host)), (LIMIT, 2.0), "{what}");
    }
    host.await_log(&["FORGED FLEET OVERRIDES"]);
    let ready = get(&host, "/readyz");
    assert!(ready.status == 200 && ready.body.starts_with("ready\nnote: FORGED"), "{}", ready.body);
    assert!(host.run("status").contains("FORGED fleet overrides"));
    // Operator changes still apply.
    host.run("switch per-user disabled --fleet --for 1h");
    assert_eq!(verdict(&host, "u1"), ALLOW);
}

/// Stores the result of an expression on the older document.
fn copy(redis: &Redis, expression: &str) {
    redis.order(&format!("EVAL return(redis.call('set',KEYS[1],{expression})) 2 {KEY} old"));
}

#[test]
fn an_older_document_is_ignored_after_a_flush_a_backup_and_a_restart() {
    let mut redis = Redis::start(&[]);
    let host = connected(&redis, RULES);
    host.run("switch per-user disabled --fleet --for 1h");
    redis.order("SAVE");
    host.run("switch per-user --clear --fleet");
    uses_up(&host, "u1");
    redis.order("FLUSHALL");
    let newest = eventually("the newest is written back", || {
        Some(redis.say(&format!("GET {KEY}"))).filter(|value| value != "$-1\r\n")
    });
    assert_eq!(verdict(&host, "u1"), LIMIT);
    // The backup.
    redis.kill();
    redis.restart(None);
    wait_until("the backup is replaced", || redis.say(&format!("GET {KEY}")) == newest);
    wait_until("it is counted", || rejected(&host, "stale") >= 1.0);
    await_version(&host, 2);
    assert_eq!(verdict(&host, "u1"), LIMIT);
    // The version outlives the process: the host rejects a Redis that was rolled back meanwhile.
    eventually("it is kept", || {
        let kept = fs::read(host.plan.path("state/fleet-overrides")).ok()?;
        (kept.get(7) == Some(&2)).then_some(())
    });
    let mut host = host;
    host.process.signal(9);
    host.process.exit_code();
    redis.kill();
    redis.restart(None);
    assert_ne!(redis.say(&format!("GET {KEY}")), newest, "the backup has the older one");
    let host = host.plan.start();
    wait_until("the backup is replaced", || redis.say(&format!("GET {KEY}")) == newest);
    await_version(&host, 2);
    uses_up(&host, "u2");
}

#[test]
fn an_authentic_document_switches_no_more_than_an_operator_could() {
    let redis = Redis::start(&[]);
    let host = connected(&redis, RULES);
    uses_up(&host, "u1");
    let days = |days: u64| Some(Duration::from_secs(days * 86_400));
    let mut known = OverridesDocument::default();
    for (what, target, until) in [
        ("everything without an end", Target::Daemon, None),
        ("an end in 400 days", per_user(), days(400)),
        ("everything until 400 days from now", Target::Daemon, days(400)),
    ] {
        let document = after(&known, &switch(target, until), &key());
        put(&redis, &document.bytes);
        await_version(&host, document.version);
        assert_eq!(verdict(&host, "u1"), LIMIT, "{what}");
        known = document;
    }
    assert!(rejected(&host, "unknown") >= 1.0);
    // Overrides expire by the host's clock, and health and status show them.
    let (lasts, since) = (Duration::from_secs(15), now().at);
    let document = after(&known, &switch(Target::Daemon, Some(lasts)), &key());
    put(&redis, &document.bytes);
    wait_until("everything is off", || verdict(&host, "u1") == ALLOW);
    let ready = get(&host, "/readyz").body;
    assert!(ready.contains("note: everything is disabled on all hosts until 2"), "{ready}");
    assert!(host.run("status").contains("everything is disabled on all hosts until 2"));
    sleep(lasts.saturating_sub(now().at.since(since)));
    wait_until("it ends", || verdict(&host, "u1") == LIMIT);
    assert_eq!(get(&host, "/readyz").body, "ready\n");
}

#[test]
fn hosts_choose_the_same_of_two_documents_of_one_version() {
    let redis = Redis::start(&[]);
    let hosts = [RULES; 2].map(|rules| connected(&redis, rules));
    let rule = |rule: &str| Target::Rule(RuleName { domain: "api".into(), rule: rule.into() });
    let two = ["per-user", "shared"]
        .map(|name| after(&OverridesDocument::default(), &switch(rule(name), None), &key()));
    let is_first = two[0].bytes.last_chunk::<32>() > two[1].bytes.last_chunk::<32>();
    let held = if is_first { "api/per-user: disabled" } else { "api/shared: disabled" };
    // In the intended order, and in the other.
    for order in
        [[usize::from(is_first), usize::from(!is_first)], [usize::from(!is_first), usize::from(is_first)]]
    {
        for at in order {
            put(&redis, &two[at].bytes);
            hosts.iter().for_each(|host| await_version(host, 1));
        }
        hosts.iter().for_each(|host| drop(await_line(host, held)));
        let other = if is_first { "api/shared: disabled" } else { "api/per-user: disabled" };
        hosts.iter().for_each(|host| await_no_line(host, other));
    }
}

#[test]
fn hostile_redis_loosens_no_limit() {
    let mut changed = b"$42\r\n\x01".to_vec();
    changed.extend([0; 41]);
    changed.extend(b"\r\n");
    for (what, reply) in [
        ("written", b"$1\r\n\x02\r\n".to_vec()),
        ("the same", b"$1\r\n\x00\r\n".to_vec()),
        ("zeros", changed),
        ("a number", b":1\r\n".to_vec()),
        ("nothing", b"$-1\r\n".to_vec()),
    ] {
        let liar = Liar::start(reply.clone(), reply.repeat(512), true);
        let host = plan(&liar.url(), RULES, "").start();
        wait_until(what, || liar.connections.load(Ordering::Relaxed) > 1);
        uses_up(&host, "u1");
        host.fail("switch per-user disabled --fleet --for 1h", 1);
        assert_eq!((verdict(&host, "u1"), version(&host)), (LIMIT, 0.0), "{what}");
    }
}
