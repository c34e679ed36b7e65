//! The page at `/`: its content, and the escaping of texts of callers and files.

use super::scrape::greet;
use crate::prelude::*;

/// The page, once `holds` accepts it.
fn until(daemon: &Daemon, what: &str, holds: impl Fn(&str) -> bool) -> String {
    eventually(what, || Some(get(daemon, "/").body).filter(|page| holds(page)))
}

#[test]
fn serves_front_page_as_one_locked_down_file() {
    let daemon = daemon();
    let first = get(&daemon, "/");
    assert_eq!(first.status, 200);
    let headers = [
        "content-type: text/html; charset=utf-8",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "content-security-policy: default-src 'none'; script-src 'nonce-",
    ];
    has(&first.head, &headers);
    let nonce =
        |head: &str| head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    let nonce_of_first = nonce(&first.head);
    assert_eq!(
        (nonce_of_first.len(), first.body.matches(&format!("nonce=\"{nonce_of_first}\"")).count()),
        (32, 2)
    );
    let second = get(&daemon, "/");
    let svg = "http://www.w3.org/2000/svg";
    assert_eq!(first.body.matches("http://").count(), first.body.matches(svg).count());
    for foreign in ["https://", " style=", " onclick="] {
        assert!(!first.body.contains(foreign), "{foreign}: {}", first.body);
    }
    assert!(!first.head.contains("unsafe"), "{}", first.head);
    assert_ne!(nonce_of_first, nonce(&second.head), "nobody knows the next one");
    assert!(first.body.contains("<noscript><meta http-equiv=\"refresh\""), "it goes on without a script");
    assert_eq!(ask(&daemon, "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n").body, "");
    assert_eq!(post(&daemon, "/", "").status, 405);
}

#[test]
fn reports_largest_missed_counts_of_clients() {
    let daemon = daemon();
    for reason in ["callback", "timeout"] {
        greet(&daemon, &json!({"client": "python/1", "missed": {reason: u64::MAX}}));
    }
    until(&daemon, "what clients missed", |page| page.contains("decided by clients alone"));
    let status = get(&daemon, "/status");
    has(&status.body, &[&format!("clients made {} decisions without", tidegate::terms::count(1 << 32))]);
    let raised = format!("functions of an application raised {} times", tidegate::terms::count(1 << 32));
    assert!(status.body.contains(&raised), "{}", status.body);
    assert_eq!(get(&daemon, "/metrics").status, 200);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn counts_function_that_raised_as_decided_by_the_daemon() {
    let daemon = daemon();
    greet(&daemon, &json!({"client": "python/1", "missed": {"callback": 28}}));
    let page = until(&daemon, "the warning", |page| page.contains("raised 28 times"));
    assert!(page.contains("every client had its answers"), "{page}");
    let status = get(&daemon, "/status").body;
    assert!(!status.contains("without the daemon"), "{status}");
}
