//! Operators' views of fleet budgets: real daemons with a real Redis, connected and not.

use super::redis_server::{Redis, is_installed};
use super::scrape::scrape;
use crate::prelude::*;
use std::os::unix::fs::PermissionsExt;

const RULES: &str = "\
domain: api
priorities: [critical, other]
limits:
  - {name: per-tenant, key: [tenant], rate: 10/s, burst: 10, scope: fleet, fleet: {on_miss: admit}}
  - {name: per-user, key: [user], rate: 1/h, burst: 5}
concurrency:
  - {name: exports, key: [org], max: 7, scope: fleet}
shed: [{pool: web, fleet: {reserve: 20%}}]
";

/// A daemon that shares its budgets through this Redis.
fn sharing(redis: &Redis, more: &str) -> Daemon {
    let plan = Plan::new().rules("api.yaml", RULES);
    let secret = plan.path("secret");
    fs::write(&secret, [7; 32]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    plan.settings(&format!("redis: {{url: \"{}\", fleet_secret_files: [secret]{more}}}", redis.url())).start()
}

fn page(daemon: &Daemon) -> Value {
    get(daemon, "/fleet").json()
}

/// Makes requests of one tenant until Redis has answered about it.
fn ask_for(daemon: &Daemon, tenant: &str) {
    let mut wire = daemon.greeted();
    let mut id = 0;
    eventually("Redis was asked", || {
        for _ in 0..5 {
            id += 1;
            verdict_of(&wire.ask(&json!([3, id, "api", [["tenant", tenant]]])));
        }
        (page(daemon)["rules"][0]["cells"].as_u64()? > 3).then_some(())
    });
}

#[test]
fn reports_fleet_state_with_and_without_redis() {
    needs!(is_installed());
    let mut redis = Redis::start(&[]);
    let daemon = sharing(&redis, "");
    ask_for(&daemon, "canary-t1");
    assert_permits_in_use(&daemon);
    let page = page(&daemon);
    let rule = &page["rules"][0];
    assert_eq!(json!([page["redis"], page["needed"], page["hosts"]]), json!([true, true, 1]));
    let node = &page["nodes"][0];
    assert_eq!(json!([node["connections"], node["state"], node["url"]]), json!([1, "up", redis.url()]));
    assert_eq!(page["host"].as_str().unwrap().len(), 8, "{page}");
    assert_eq!(page["rules"].as_array().unwrap().len(), 2, "{page}");
    let fields = ["domain", "rule", "mode", "limit", "keys", "shared"].map(|field| &rule[field]);
    assert_eq!(json!(fields), json!(["api", "per-tenant", "borrow", 10, 1, true]));
    let bound = ["hosts", "on_miss", "extra", "quiet_permille"].map(|field| &rule["bound"][field]);
    assert_eq!(json!(bound), json!([1, "admit", 1, 100]), "a tenth of ten");
    assert!(rule["version"].as_u64() >= Some(1) && rule["stale_s"].as_f64().unwrap() < 60.0, "{rule}");
    let metrics = scrape(&daemon);
    assert_eq!([metrics.of("tidegate_fleet_needed"), metrics.of("tidegate_fleet_linked")], [1.0, 1.0]);
    assert_eq!(metrics.of("tidegate_fleet_hosts"), 1.0);
    // The second key is that of leases, which end with their connection.
    assert!((1.0..=2.0).contains(&metrics.of("tidegate_fleet_keys")));
    assert_eq!(metrics.of("tidegate_fleet_bound_tokens{domain=\"api\",rule=\"per-tenant\"}"), 1.0);
    assert!(metrics.of("tidegate_fleet_cells_total") > 3.0);
    assert!(metrics.of("tidegate_fleet_batches_total{outcome=\"answered\"}") > 3.0);
    assert!(metrics.of("tidegate_fleet_round_trip_seconds") > 0.0);

    let out = daemon.run("fleet");
    has(&out, &["1 host, Redis up", "api/per-tenant", "borrow", "admit", "+1", "unix://", "up"]);
    assert!(!out.contains("per-user"), "a rule of this host: {out}");
    assert_eq!(daemon.json("fleet")["rules"][0]["rule"], "per-tenant");
    let status = daemon.run("status");
    assert!(
        status.contains("fleet        1 host, Redis up") && !status.contains("warning: Redis"),
        "{status}"
    );

    redis.kill();
    let page = eventually("Redis is missed", || {
        Some(self::page(&daemon))
            .filter(|page| page["linked"] == false && page["nodes"][0]["state"] == "down")
    });
    assert_eq!(page["nodes"][0]["class"], "down", "{page}");
    assert!(page["errors"]["down"].as_u64().unwrap() > 0 && page["outages"] == 1, "{page}");
    let metrics = scrape(&daemon);
    assert_eq!([metrics.of("tidegate_fleet_needed"), metrics.of("tidegate_fleet_linked")], [1.0, 0.0]);
    assert_eq!(metrics.of("tidegate_fleet_outages_total"), 1.0);
    assert!(metrics.of("tidegate_fleet_errors_total{class=\"down\"}") > 0.0);
    has(&daemon.run("fleet"), &["Redis DOWN for ", "failures     down "]);
    let status = daemon.run("status");
    has(&status, &["warning: Redis does not answer (", "`tidegate fleet`"]);
    redis.restart(None);
    wait_until("Redis is heard", || self::page(&daemon)["linked"] == true);
}

fn assert_permits_in_use(daemon: &Daemon) {
    let mut wire = daemon.greeted();
    let mut begun = 0;
    wait_until("three have begun", || {
        begun += u32::from(verdict_of(&wire.ask(&json!([1, 1, "api", [["org", "canary-o1"]]]))) == 0);
        begun == 3
    });
    // If Redis answers too late, the fallback allows the request, and its permit follows.
    let page = eventually("each has a permit", || {
        Some(page(daemon)).filter(|page| page["rules"][1]["places"]["held"].as_u64() >= Some(3))
    });
    let rule = &page["rules"][1];
    let fields = json!([
        rule["rule"],
        rule["limit"],
        rule["shared"],
        rule["bound"]["on_miss"],
        rule["places"]["in_use"]
    ]);
    assert_eq!(fields, json!(["exports", 7, true, "ask", 3]), "{rule}");
    assert!(rule["places"]["held"].as_u64() <= Some(7), "{rule}");
    assert!(daemon.run("fleet").contains("in use"));
    let out = daemon.run("fleet show exports org=canary-o1");
    assert!(out.contains("3 in use, of 7 over 1 hosts") && !out.contains("canary"), "{out}");
}

#[test]
fn reports_bound_by_host_count_and_keys_by_digest() {
    needs!(is_installed());
    let mut redis = Redis::start(&[]);
    let hosts = [0, 1].map(|_| sharing(&redis, ""));
    let [one, other] = &hosts;
    let both = eventually("each knows of the other", || {
        let pages = hosts.each_ref().map(page);
        pages.iter().all(|page| page["hosts"] == 2).then_some(pages)
    });
    assert_ne!(both[0]["host"], both[1]["host"]);
    for page in both {
        assert_eq!(page["errors"]["down"], 0, "a start with a healthy Redis: {page}");
        assert_eq!(page["rules"][0]["bound"]["extra"], 2, "less than a token each: one each");
    }
    ask_for(one, "canary-t1");
    let body = json!({"rule": "per-tenant", "key": [["tenant", "canary-t1"]]}).to_string();
    let [here, there] = [one, other].map(|daemon| post(daemon, "/fleet/key", &body).json());
    assert_eq!([&here["known"], &there["known"]], [true, false], "{here} {there}");
    assert_eq!(here["key"], there["key"], "known by the same name on both");
    assert!(here["redis"]["level"].is_number() && here["redis"]["age_s"].as_f64() >= Some(0.0), "{here}");
    let key = here["key"].as_str().unwrap();
    assert_eq!(redis.say("KEYS *").matches(key).count(), 1, "and in Redis");
    assert!(!here.to_string().contains("canary"));

    has(&one.run("fleet show per-tenant tenant=canary-t1"), &[key, " borrowed, ", " left for all, "]);
    let by_digest = one.run(&format!("fleet show per-tenant --digest {}", here["digest"].as_str().unwrap()));
    assert!(by_digest.contains(key) && by_digest.contains(" borrowed, "), "{by_digest}");
    let why = one.json("why api tenant=canary-t1");
    assert_eq!(why["checks"][0]["digest"], here["digest"], "one digest everywhere");
    has(&other.run("fleet show api/per-tenant tenant=canary-t1"), &["no recent request"]);
    let files = one.plan.path("rules");
    let explain = format!("explain api tenant=canary-t1 --live --rules {}", files.display());
    let out = one.run(&explain);
    has(&out, &["live      per-tenant: ", " borrowed, ", " left for all, "]);
    let printed = one.json(&explain);
    assert_eq!(printed["live"]["per-tenant"]["share"]["key"], key, "{printed}");
    assert!(printed["live"]["per-tenant"]["counts"]["passed"].as_u64() > Some(0), "{printed}");
    for (arguments, expected) in [
        ("fleet show per-user user=u1", "no `scope: fleet`"),
        ("fleet show per-tenant", "tenant"),
        ("fleet show per-tennant tenant=a", "did you mean `api/per-tenant`?"),
    ] {
        has(&one.fail(arguments, 1), &[expected]);
    }
    assert_shows_reserve(&hosts, &mut redis);
}

/// Shows the slots of both hosts, and those of each alone without Redis.
fn assert_shows_reserve(hosts: &[Daemon; 2], redis: &mut Redis) {
    let mut sessions = hosts.each_ref().map(Daemon::connect);
    for session in &mut sessions {
        session.ask(&json!([0, 1, 1, {"pool": "web", "slots": 10}]));
    }
    let reserve = |host: &Daemon| page(host)["reserves"][0].clone();
    let metric = |name: &str| scrape(&hosts[0]).of(&format!("tidegate_fleet_reserve_{name}{{pool=\"web\"}}"));
    let printed = eventually("each knows of the other's slots", || {
        let reserves = hosts.each_ref().map(reserve);
        let knows = |reserve: &Value| reserve["elsewhere"]["slots"] == 10;
        reserves.iter().all(knows).then_some(reserves).map(|[first, _]| first)
    });
    let numbers = json!([printed["most"], printed["others"], printed["elsewhere"]["others"]]);
    assert_eq!(
        (&printed["pool"], &printed["shared"], numbers),
        (&json!("web"), &json!(true), json!([8, 0, 8]))
    );
    assert!(printed["elsewhere"]["stale_s"].as_f64().unwrap() < 10.0, "{printed}");
    assert_eq!([metric("shared"), metric("most")], [1.0, 8.0]);
    assert!((0.0..10.0).contains(&metric("staleness_seconds")));
    has(&hosts[0].run("fleet"), &["web      the fleet"]);
    has(&hosts[0].run("status"), &["8 by the fleet, "]);

    redis.kill();
    let printed = eventually("it goes by this host", || {
        Some(reserve(&hosts[0])).filter(|reserve| reserve["shared"] == false)
    });
    assert_eq!([&printed["most"], &printed["elsewhere"]], [&json!(8), &Value::Null], "{printed}");
    assert_eq!([metric("shared"), metric("staleness_seconds")], [0.0, 0.0]);
    has(&hosts[0].run("fleet"), &["web      this host"]);
    has(&hosts[0].run("status"), &["8 by this host"]);
}

#[test]
fn warns_of_fleet_rules_without_redis() {
    let daemon = Plan::new().rules("api.yaml", RULES).start();
    let page = page(&daemon);
    assert_eq!([&page["redis"], &page["hosts"]], [&json!(false), &json!(0)]);
    assert_eq!(page["rules"][0]["shared"], false);
    let warnings = get(&daemon, "/status").json()["warnings"].to_string();
    has(&warnings, &["`scope: fleet` is in 2 rules:", "fleet_secret_files"]);
    has(&daemon.run("fleet"), &["shares with no other host", "this host alone"]);
    // Without fleet rules there is no report.
    let alone = Plan::new().start();
    assert_eq!(get(&alone, "/status").json()["fleet"], Value::Null);
    assert!(!alone.run("status").contains("fleet"));
}

#[test]
fn doctor_reports_redis_faults_with_help() {
    needs!(is_installed());
    let acl = fs::canonicalize("config/redis-acl.conf").unwrap();
    let mut redis = Redis::start_on_port(&["--include", acl.to_str().unwrap()]);
    redis.order("ACL SETUSER tidegate >correct-horse +info");
    let daemon = sharing(&redis, ", user: tidegate, password_file: password");
    fs::write(daemon.plan.path("password"), "correct-horse\n").unwrap();
    // The daemon retries 30 s after a missing password.
    let settings = daemon.plan.path("tidegate.yaml");
    let doctor = || daemon.doctor(&[]);
    let output = doctor();
    for what in ["fleet secret", "redis", "redis memory", "redis clock"] {
        assert!(finding(&output, what).starts_with("well "), "{what}: {:?}", outcome_of(&output));
    }

    redis.order("CONFIG SET maxmemory-policy allkeys-lru");
    redis.order("ACL SETUSER tidegate -zadd");
    for file in ["secret", "password"] {
        fs::set_permissions(daemon.plan.path(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let output = doctor();
    finds(&output, "look ", "files", &["password: every user may read it", "chmod 0600"]);
    finds(&output, "look ", "redis memory", &["allkeys-lru", "noeviction"]);
    finds(&output, "WRONG", "redis", &["ZADD", "redis-acl.conf"]);
    finds(&output, "look ", "fleet secret", &["secret: the fleet secret has mode 0644", "chmod 0600"]);
    assert_eq!(output.status.code(), Some(1));

    redis.order("ACL SETUSER tidegate +zadd -info -evalsha");
    finds(&doctor(), "WRONG", "redis", &["noperm", "redis-acl.conf"]);
    redis.order("ACL SETUSER tidegate +evalsha");
    finds(&doctor(), "? ", "redis memory", &["+info"]);
    fs::write(daemon.plan.path("password"), "wrong-horse").unwrap();
    fs::write(daemon.plan.path("secret"), "short").unwrap();
    let output = doctor();
    finds(&output, "WRONG", "redis", &["auth", "password"]);
    finds(&output, "WRONG", "fleet secret", &["/dev/urandom"]);
    assert!(!format!("{:?}", outcome_of(&output)).contains("horse"));

    let plain = fs::read_to_string(&settings)
        .unwrap()
        .replace(&redis.url(), &format!("redis://0.0.0.0:{}", redis.port));
    fs::write(&settings, plain).unwrap();
    redis.kill();
    let output = doctor();
    finds(&output, "WRONG", "redis", &["down", "help: start it"]);
    assert!(outcome_of(&output).1.contains("plain text beyond this host"), "{:?}", outcome_of(&output));
}
