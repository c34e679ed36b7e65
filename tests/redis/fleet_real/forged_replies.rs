//! Tests false fleet overrides in Redis: rules of `scope: host` stay in force, and the alarm shows.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{FleetChange, Mode, RuleName, Switch, SwitchOrigin, Target};
use tidegate::fleet::overrides::OverridesDocument;
use tidegate::fleet::secrets::OverridesKey;

use super::hosts::{metric, plan};
use super::liar::Liar;
use super::overrides::{ALLOW, LIMIT, RULES, await_line, connected, uses_up, verdict};
use crate::prelude::*;

const KEY: &str = "tg:{tm}:overrides";

/// Returns the first document of a fleet, which disables a rule without an end.
#[allow(clippy::disallowed_methods, reason = "a test has no clock of the daemon's")]
fn disabling(rule: &str, secret: u8) -> Vec<u8> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let now = Now { at: Timestamp::from_nanos(u64::try_from(unix).unwrap()), utc_offset_nanos: 0 };
    let target = Target::Rule(RuleName { domain: "api".into(), rule: rule.into() });
    let by = SwitchOrigin::User(0);
    let switch =
        FleetChange::Switch(Switch { target, mode: Mode::Disabled, until: None, set_at: now.at, by });
    let key = OverridesKey::of_secret(&[secret; 32]);
    OverridesDocument::default().after(&switch, &[9; 16], &key, now).unwrap().unwrap().bytes
}

fn connection(redis: &Redis) -> ::redis::Connection {
    ::redis::Client::open(redis.url()).unwrap().get_connection().unwrap()
}

/// Writes any bytes to the key, as another client would.
fn put(redis: &Redis, bytes: &[u8]) {
    ::redis::cmd("SET").arg(KEY).arg(bytes).exec(&mut connection(redis)).unwrap();
}

/// Returns the bytes of the key; none if it is no string.
fn stored(redis: &Redis) -> Vec<u8> {
    ::redis::cmd("GET").arg(KEY).query(&mut connection(redis)).unwrap_or_default()
}

fn version(host: &Daemon) -> f64 {
    metric(host, "tidegate_fleet_overrides_version")
}

/// Disables `per-user` for all hosts, makes a backup, and enables it again. Returns the two documents.
fn two_versions(redis: &Redis, host: &Daemon) -> [Vec<u8>; 2] {
    host.run("switch per-user disabled --fleet --for 1h");
    let old = stored(redis);
    redis.order("SAVE");
    host.run("switch per-user --clear --fleet");
    [old, stored(redis)]
}

/// The fuzz target `fleet_overrides` has documents with parts of others.
#[test]
fn host_rules_limit_for_any_value_in_redis() {
    let redis = Redis::start(&[]);
    let host = connected(&redis, RULES);
    let [old, new] = two_versions(&redis, &host);
    uses_up(&host, "u1");
    for (reason, what, value) in [
        ("stale", "an older document", Some(old)),
        ("forged", "garbage", Some(b"everything: disabled".to_vec())),
        ("forged", "the document of another secret", Some(disabling("per-user", 8))),
        ("unreadable", "two megabytes", Some(vec![b'x'; 2 << 20])),
        ("unreadable", "a list", None),
    ] {
        let rejected =
            || metric(&host, &format!("tidegate_fleet_overrides_rejected_total{{reason=\"{reason}\"}}"));
        let before = rejected();
        if let Some(value) = value {
            put(&redis, &value);
        } else {
            redis.order("LPUSH list x");
            redis.order(&format!("RENAME list {KEY}"));
        }
        wait_until(&format!("{what} is rejected"), || rejected() > before);
        assert_eq!(verdict(&host, "u1"), LIMIT, "{what}");
        wait_until(&format!("{what} is replaced"), || stored(&redis) == new);
        assert_eq!((verdict(&host, "u1"), version(&host)), (LIMIT, 2.0), "{what}");
    }
    host.await_log(&["FORGED FLEET OVERRIDES"]);
    let ready = get(&host, "/readyz");
    assert!(ready.status == 200 && ready.body.starts_with("ready\nnote: FORGED"), "{}", ready.body);
    assert!(host.run("status").contains("FORGED fleet overrides"));
    // Operator changes still apply.
    host.run("switch --all disabled --fleet --for 1h");
    assert_eq!(verdict(&host, "u1"), ALLOW);
    has(&get(&host, "/readyz").body, &["note: everything is disabled on all hosts until 2"]);
    has(&host.run("status"), &["everything is disabled on all hosts until 2"]);
}

/// The version outlives the process: the host rejects a Redis that was rolled back meanwhile.
#[test]
fn an_older_document_of_a_backup_is_ignored_after_a_restart() {
    let mut redis = Redis::start(&[]);
    let host = connected(&redis, RULES);
    let [_, new] = two_versions(&redis, &host);
    let kept = || fs::read(host.plan.path("state/fleet-overrides")).unwrap_or_default();
    wait_until("the version is kept", || kept().get(7) == Some(&2));
    let plan = host.killed();
    redis.kill();
    redis.restart(None);
    assert_ne!(stored(&redis), new, "the backup has the older one");
    let host = plan.start();
    wait_until("the backup is replaced", || stored(&redis) == new);
    wait_until("the newest is in force", || version(&host) == 2.0);
    uses_up(&host, "u2");
}

#[test]
fn hosts_choose_the_same_of_two_documents_of_one_version() {
    let redis = Redis::start(&[]);
    let hosts = [RULES; 2].map(|rules| connected(&redis, rules));
    let mut two = ["per-user", "shared"].map(|rule| (disabling(rule, 7), rule));
    two.sort_by_key(|(document, _)| document.last_chunk::<32>().copied());
    let [(smaller, smaller_rule), (larger, rule)] = two;
    for (document, rule) in [(&smaller, smaller_rule), (&larger, rule), (&smaller, rule)] {
        put(&redis, document);
        hosts.iter().for_each(|host| drop(await_line(host, &format!("api/{rule}: disabled"))));
    }
    wait_until("the smaller one is replaced", || stored(&redis) == larger);
}

#[test]
fn hostile_redis_loosens_no_limit() {
    for (what, reply) in [
        ("written", b"$1\r\n\x02\r\n".to_vec()),
        ("the same", b"$1\r\n\x00\r\n".to_vec()),
        ("zeros", [&b"$42\r\n\x01"[..], &[0; 41], b"\r\n"].concat()),
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
