//! No metric, status or log shows the values that callers send.

use serde_json::json;

use super::daemon::Plan;
use super::http::{ask, get, post};

/// Part of every value sent here and of no other text.
const CANARY: &str = "canary7f3a";

#[test]
fn never_shows_client_values() {
    let daemon =
        Plan::new().rules("app.yaml", super::scrape::EVERYTHING).settings("log: {level: trace}").start();
    let mut wire =
        super::scrape::greet(&daemon, &json!({"client": CANARY, "pool": "web", "missed": {"timeout": 1}}));
    for id in 0..50 {
        for domain in ["app", "api", CANARY] {
            wire.ask(&json!([3, id, domain, [["user", CANARY, "path", CANARY, CANARY, CANARY]], 1, CANARY]));
        }
        wire.ask(&json!([1, id, "app", [["user", CANARY, "job", "export"]], 1, null, {"idem": CANARY}]));
    }
    wire.ask(&json!([7, 1, "web", CANARY, 400]));
    wire.ask(&json!([3, 1, "api", [["user", CANARY], [CANARY]]]));
    for path in ["/metrics", "/status", "/rules", "/readyz", "/healthz", "/"] {
        let answer = get(&daemon, path);
        assert!(!answer.body.contains(CANARY), "{path}: {}", answer.body);
    }
    daemon.process.signal(libc::SIGUSR1);
    daemon.await_log(&["INFO", "status", "\"version\"", "\"pools\""]);
    // Operators' input stays out of the log too, as it may name a caller.
    post(&daemon, "/reload", &format!("{{\"user\": \"{CANARY}\"}}"));
    post(&daemon, &format!("/{CANARY}"), CANARY);
    ask(&daemon, &format!("GET /{CANARY}?{CANARY} HTTP/1.1\r\nhost: {CANARY}\r\n{CANARY}: {CANARY}\r\n\r\n"));
    assert!(!daemon.log().contains(CANARY), "{}", daemon.log());
}
