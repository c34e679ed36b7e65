//! The pages besides the metrics, and their answers while the rules have errors.

use crate::prelude::*;

#[test]
fn index_lists_every_page() {
    let daemon = daemon();
    let index = get(&daemon, "/");
    assert_eq!(index.status, 200);
    has(&index.body, &["/metrics", "/status", "/rules", "/healthz", "/readyz", "/reload"]);
    assert_eq!(get(&daemon, "/nowhere").status, 404);
    assert!(get(&daemon, "/nowhere").error().contains("GET /"));
    // The right path with the wrong method.
    assert_eq!(get(&daemon, "/reload").status, 405);
    assert_eq!(post(&daemon, "/metrics", "").status, 405);
    assert!(post(&daemon, "/metrics", "").head.contains("allow: get"));
    let head = ask(&daemon, "HEAD /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!((head.status, &*head.body), (200, ""));
    // A query is ignored.
    assert_eq!(get(&daemon, "/healthz?verbose=1").status, 200);
}

#[test]
fn rejects_body_that_is_no_json_object() {
    let daemon = daemon();
    for (body, word) in [("{", "JSON"), ("[]", "object"), ("\"reload\"", "object"), ("\u{0}", "JSON")] {
        let answer = post(&daemon, "/reload", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.error().contains(word), "{body}: {}", answer.body);
    }
    assert_eq!(post(&daemon, "/reload", "  \n").json(), json!({"ok": true, "changes": []}));
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(65_536));
    assert_eq!(post(&daemon, "/reload", &long).status, 413);
}

#[test]
fn reload_response_reports_the_result() {
    let daemon = daemon();
    let file = daemon.plan.path("rules/api.yaml");
    // The daemon watches its rules: on a busy machine it may have read them before the request.
    let mut rate = 1;
    let changes = eventually("a reload finds a change", || {
        rate += 1;
        let rules =
            format!("domain: api\nlimits: [{{name: per-user, key: [user], rate: {rate}/h, burst: 5}}]\n");
        fs::write(&file, rules).unwrap();
        let done = post(&daemon, "/reload", "");
        assert_eq!(done.status, 200);
        Some(done.json()["changes"].to_string()).filter(|changes| changes != "[]")
    });
    assert!(changes.contains("api/per-user") && changes.contains(&format!("{rate}/h")), "{changes}");
    fs::write(&file, "domain: api\nlimits: [{name: per-user, key: [user], rate: 2/hr}]\n").unwrap();
    let failed = post(&daemon, "/reload", "");
    assert_eq!(failed.status, 409);
    let why = failed.error();
    has(&why, &["api.yaml:2:", "2/hr", "keeps its last good"]);
    // All domains keep good rules, so a balancer that asks every host removes none.
    let ready = get(&daemon, "/readyz");
    assert!(ready.status == 200 && ready.body.contains("\nnote: the rules have errors"), "{}", ready.body);
    assert!(daemon.run("healthcheck").contains("tidegate check"));
    // A new domain with errors has no limits.
    fs::write(daemon.plan.path("rules/b.yaml"), "domain: b\nlimits: [{name: a, rate: 1}]\n").unwrap();
    post(&daemon, "/reload", "");
    assert_eq!(get(&daemon, "/readyz").status, 503);
    assert_eq!(daemon.outcome("healthcheck").0, Some(1));
    assert_eq!(get(&daemon, "/healthz").status, 200);
    // The last good rules still decide.
    let mut wire = daemon.greeted();
    assert_eq!(wire.ask(&hit(1, "u"))[5], 3_600_000_000_u64 / rate * 5);
}

#[test]
fn status_reports_decisions_and_top_callers() {
    let rules = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5}
  - {name: per-plan, match: {plan: \"*\"}, key: [user, plan], rate: 1/h, burst: 1, mode: shadow, show_keys: [plan]}
";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    let mut wire = daemon.greeted();
    for id in 0..7 {
        wire.ask(&hit(id, "canary7f3a"));
    }
    for id in 0..3 {
        wire.ask(&json!([3, id, "api", [["user", "canary-b", "plan", "gold"]]]));
    }
    let status = get(&daemon, "/status").json();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["mode"], "enforce");
    assert_eq!(status["decisions"], json!({"allow": 8, "limit": 2, "wait": 0, "deny": 0, "shed": 0}));
    assert_eq!(status["connections"]["now"], 1);
    assert_eq!(status["sessions"], 1);
    assert_eq!(status["memory"]["keys"], 3);
    assert_eq!(status["rules"]["good"], true);
    assert_eq!(status["rules"]["domains"][0]["rules"], 2);
    let counts = &status["counts"];
    assert_eq!(json!([counts[0]["rule"], counts[0]["pass"], counts[0]["refuse"]]), json!(["per-user", 8, 2]));
    assert_eq!([&counts[1]["mode"], &counts[1]["would_refuse"]], [&json!("shadow"), &json!(2)]);
    let refused = &status["callers"]["refused"][0];
    assert_eq!([&refused["count"], &refused["text"]], [&json!(2), &Value::Null]);
    assert_eq!(refused["digest"].as_str().unwrap().len(), 32);
    assert_eq!(status["callers"]["would_refuse"][0]["text"], "plan=gold", "the rule lets it be shown");
    assert!(!status.to_string().contains("canary"), "{status}");
    // A thread that has just started may not have sent its heartbeat yet.
    wait_until("no warning is left", || get(&daemon, "/status").json()["warnings"] == json!([]));
}

#[test]
fn rules_page_reports_spans_and_modes() {
    let daemon = Plan::new().rules("app.yaml", super::scrape::EVERYTHING).settings("mode: shadow").start();
    let page = get(&daemon, "/rules").json();
    let app = page["domains"].as_array().unwrap().iter().find(|domain| domain["name"] == "app").unwrap();
    let of = |name: &str| app["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == name).unwrap();
    let per_user = of("per-user");
    assert_eq!([&per_user["kind"], &per_user["mode"]], ["limit", "shadow"], "the daemon's is milder");
    assert!(per_user["at"].as_str().unwrap().ends_with("app.yaml:6"), "{per_user}");
    assert_eq!([&per_user["says"]["rate"], &per_user["says"]["key"]], ["1/h", "[user]"]);
    assert_eq!([&of("probes")["kind"], &of("bots")["kind"]], ["exempt", "deny"]);
    assert_eq!([&of("exports")["kind"], &of("web/workers")["kind"]], ["concurrency", "shed"]);
    assert_eq!(of("bots")["mode"], "shadow");
}

/// Scripts read these keys: a change of them belongs into the changelog.
#[test]
fn keeps_keys_of_status_and_fleet() {
    let rules = "domain: api\nlimits: [{name: a, key: [user], rate: 1/s}]\npriorities: [high, low]\nshed: [{pool: web, workers: {}}]\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    let mut wire = daemon.greeted();
    (0..20).for_each(|id| drop(wire.ask(&hit(id, "u"))));
    post(&daemon, "/switch", "{\"rule\": \"a\", \"mode\": \"shadow\"}");
    post(&daemon, "/block", "{\"rule\": \"a\", \"key\": {\"user\": \"v\"}, \"for_s\": 60}");
    let (status, fleet) = (get(&daemon, "/status").json(), get(&daemon, "/fleet").json());
    let cases = [
        (
            &status,
            "",
            "callers connections counts decisions errors fleet leases memory missed mode panics pools rules sessions shared_domains started state switches unknown_domains unmatched uptime_s version warnings",
        ),
        (&status, "/callers", "busiest refused would_refuse"),
        (&status, "/callers/busiest/0", "count digest domain error rule text unit"),
        (&status, "/counts/0", "decisions domain is_limit mode near over pass refuse rule would_refuse"),
        (&status, "/leases", "abandoned expired held not_held released session"),
        (&status, "/leases/not_held", "ended foreign unknown"),
        (&status, "/memory", "bytes evictions keys max_bytes"),
        (&status, "/pools/0", "braking busy chances pool reserve s signals slots u watched"),
        (&status, "/rules", "domains first_error good kept last_failure last_success path without"),
        (&status, "/rules/domains/0", "name rules sha"),
        (&status, "/state", "bad bytes failures last_write switches_unkept writes"),
        (&status, "/switches", "blocks changes mode off off_by switches warnings"),
        (&status, "/switches/blocks/0", "by fleet key rule text until"),
        (&status, "/switches/switches/0", "by fleet holds is_last mode rule said until written"),
        (
            &fleet,
            "",
            "alive batches cells cells_per_s clamped counted errors excess failure false_refusals host hosts keys linked lost needed nodes other_rules_hosts outages overrides overrides_forged overrides_rejected overrides_version redis reserves round_trip_us rules secret stale_s",
        ),
        (&fleet, "/overrides", "blocks switches"),
    ];
    for (page, pointer, expected) in cases {
        let object =
            page.pointer(pointer).and_then(Value::as_object).unwrap_or_else(|| panic!("{pointer}: {page}"));
        assert_eq!(object.keys().map(String::as_str).collect::<Vec<_>>().join(" "), expected, "{pointer}");
    }
}
