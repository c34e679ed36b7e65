//! The page at `/`: its content, and the escaping of texts of callers and files.

use std::fmt::Write;

use serde_json::json;

use super::daemon::{Daemon, Plan, daemon, eventually};
use super::http::{ask, get, post};
use super::scrape::greet;
use super::wire::hit;

/// The page, once `holds`.
fn until(daemon: &Daemon, what: &str, holds: impl Fn(&str) -> bool) -> String {
    eventually(what, || Some(get(daemon, "/").body).filter(|page| holds(page)))
}

fn headline(page: &str) -> &str {
    let heading = page.split("<h2 id=\"health\"").nth(1).unwrap();
    heading.split("</span> ").nth(1).unwrap().split("</h2>").next().unwrap()
}

#[test]
fn serves_front_page_as_one_locked_down_file() {
    let daemon = daemon();
    let first = get(&daemon, "/");
    assert_eq!(first.status, 200);
    for header in [
        "content-type: text/html; charset=utf-8",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "content-security-policy: default-src 'none'; script-src 'nonce-",
    ] {
        assert!(first.head.contains(header), "{header}: {}", first.head);
    }
    let nonce =
        |head: &str| head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    let said = nonce(&first.head);
    assert_eq!((said.len(), first.body.matches(&format!("nonce=\"{said}\"")).count()), (32, 2));
    let second = get(&daemon, "/");
    assert_ne!(said, nonce(&second.head), "nobody knows the next one");
    assert!(first.body.contains("<noscript><meta http-equiv=\"refresh\""), "it goes on without a script");
    assert_eq!(ask(&daemon, "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n").body, "");
    assert_eq!(post(&daemon, "/", "").status, 405);
}

#[test]
fn front_page_headline_reports_health() {
    let daemon = daemon();
    let page = until(&daemon, "every thread lives", |page| headline(page) == "All is well");
    assert!(page.contains("1 rule in 1 domain") && page.contains("last reload"), "{page}");
    post(&daemon, "/switch", "{\"rule\": \"per-user\", \"mode\": \"shadow\"}");
    let page = get(&daemon, "/").body;
    assert_eq!(headline(&page), "1 thing to know of");
    assert!(page.contains("1 switch, 0 keys blocked by hand") && page.contains("Last changes"), "{page}");
    std::fs::write(daemon.plan.path("rules/api.yaml"), "domain: api\nlimits: [{name: a, rate: 1}]\n")
        .unwrap();
    assert_eq!(post(&daemon, "/reload", "").status, 409);
    let page = get(&daemon, "/").body;
    assert!(headline(&page).starts_with("1 thing is wrong, 1 to know of"), "{}", headline(&page));
    assert!(page.contains("the last reload failed"), "{page}");
    greet(&daemon, &json!({"client": "python/1", "missed": {"timeout": 3}}));
    let page = until(&daemon, "what clients missed", |page| page.contains("decided by clients alone"));
    assert!(page.contains("most often: timeout"), "{page}");
}

#[test]
fn reports_largest_missed_counts_of_clients() {
    let daemon = daemon();
    for reason in ["callback", "timeout"] {
        greet(&daemon, &json!({"client": "python/1", "missed": {reason: u64::MAX}}));
    }
    until(&daemon, "what clients missed", |page| page.contains("decided by clients alone"));
    let status = get(&daemon, "/status");
    assert!(status.body.contains(&format!("clients made {} decisions without", u64::MAX)), "{}", status.body);
    assert_eq!(get(&daemon, "/metrics").status, 200);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn front_page_escapes_names_and_hides_callers() {
    let hostile = "<b>&\\\"'";
    let rules = format!(
        "domain: api\nlimits:\n  - {{name: per-user, key: [user], rate: 1/h, burst: 5}}\n  \
         - {{name: per-plan, match: {{plan: \"*\"}}, key: [plan], rate: 1/h, burst: 1, mode: shadow, show_keys: [plan]}}\n\
         shed:\n  - {{pool: \"web{hostile}\", workers: {{}}}}\npriorities: [high, low]\n"
    );
    let daemon = Plan::new().rules("api.yaml", &rules).start();
    let mut wire = greet(&daemon, &json!({"pool": "web<b>&\"'", "slots": 4}));
    for id in 0..9 {
        wire.ask(&hit(id, "canary7f3a"));
        wire.ask(&json!([3, id, "api", [["plan", "<i>gold"]]]));
    }
    // A rate takes two samples.
    let page = until(&daemon, "a rate", |page| page.contains("some refused"));
    assert!(page.contains("plan=&lt;i&gt;gold") && !page.contains("<i>"), "{page}");
    assert!(page.contains("class=\"badge shadow\">shadow</span>"), "{page}");
    assert!(!page.contains("canary"), "a caller is a digest");
    let digest =
        get(&daemon, "/status").json()["callers"]["refused"][0]["digest"].as_str().unwrap().to_owned();
    assert!(page.contains(&digest), "the same as in the status");
    if let Some(name) = page.split("<article><h3>").nth(1) {
        assert!(name.starts_with("<bdi>web&lt;b&gt;&amp;"), "{name}");
    }
    assert!(!page.contains("<b>"), "{page}");
}

#[test]
fn front_page_shows_busiest_of_many_rules() {
    let mut rules = "domain: api\nlimits:\n".to_owned();
    for number in 0..3_000 {
        let _ = writeln!(
            rules,
            "- {{name: rule-{number}, match: {{n: \"{number}\"}}, key: [user], rate: 1/h, burst: 1}}"
        );
    }
    let daemon = Plan::new().rules("api.yaml", &rules).start();
    let mut wire = daemon.greeted();
    for id in 0..50 {
        wire.ask(&json!([3, id, "api", [["n", "300", "user", "a"]]]));
    }
    let page = get(&daemon, "/").body;
    assert!(page.len() < 128 * 1_024, "{}", page.len());
    assert!(page.contains("2\u{202f}960 of 3\u{202f}000 are not shown"), "it says so");
    let first = page.split("<tbody>").nth(1).unwrap().split("</tr>").next().unwrap().to_owned();
    assert!(first.contains("rule-300<"), "the busiest first: {first}");
}
