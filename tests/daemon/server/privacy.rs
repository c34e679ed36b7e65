//! Values of callers and secrets stay out of the log, the pages and the replies to others.

use super::caps::greeted_at_last;
use crate::admin::scrape::{EVERYTHING, greet};
use crate::prelude::*;

/// Part of every value sent here and of no other text.
const CANARY: &str = "canary7f3a";

#[test]
#[allow(clippy::too_many_lines, reason = "every field that takes a text, in order")]
fn never_reveals_client_values_or_secrets() {
    let plan = Plan::new().rules("app.yaml", EVERYTHING);
    for file in ["password", "secret"] {
        fs::write(plan.path(file), CANARY.repeat(5)).unwrap();
    }
    // The most verbose log.
    let settings = "log: {level: trace}\nconnections: {max: 4}\nredis: {url: \"redis://127.0.0.1:1\", \
                    password_file: password, fleet_secret_files: [secret]}";
    let mut daemon = plan.settings(settings).start();
    let mut bystander = daemon.greeted();
    let mut greeted: Vec<Value> = vec![
        // Refused, panicking, without a rule.
        json!([3, 1, "api", [["user", CANARY]], 9]),
        json!([3, 1, "api", [["user", CANARY, "debug-panic", CANARY]]]),
        json!([3, 1, "no-such", [[CANARY, CANARY]]]),
        // In every other text field.
        json!([1, 1, "api", [["user", CANARY]], {CANARY: 3}, CANARY, {"idem": CANARY, CANARY: CANARY}]),
        json!([1, 1, "api", [["user", CANARY]], 1, CANARY, {"idem": CANARY, "missed": {"timeout": 1}}]),
        json!([3, 1, "api", [["user", "u"]], 1, null, {"missed": {CANARY: 3, "timeout": 1}}]),
        json!([5, 1, CANARY, [["user", CANARY]], -4]),
        json!([7, 1, CANARY, CANARY, 400]),
        json!([9, 1, CANARY]),
        json!([3, 1, format!("{CANARY}/{CANARY}"), []]),
        json!([3, 1, "api", [["user", CANARY, CANARY]]]),
        json!([3, 1, "api", [[CANARY, CANARY.repeat(200)]]]),
        json!([3, 1, "api", [["user", CANARY]], CANARY]),
        json!([3, 1, "api", [["user", CANARY]], 1, 1, {"idem": CANARY.repeat(9)}]),
        json!([0, 1, 1, {"client": CANARY}]),
        json!([CANARY, CANARY]),
    ];
    // Larger than a frame, and with a duplicate key.
    greeted.push(json!([3, 1, "api", vec![["user", &CANARY.repeat(100)]; 20]]));
    let mut bytes: Vec<Vec<u8>> = greeted.iter().map(frame).collect();
    bytes.push(framed(
        &[&[0x91, 0x82, 0xaa], CANARY.as_bytes(), &[1, 0xaa], CANARY.as_bytes(), &[1]].concat(),
    ));
    bytes.push([&[0xff; 4], CANARY.as_bytes()].concat());
    bytes.push(framed(CANARY.as_bytes()));
    for bytes in bytes {
        let mut wire = daemon.greeted();
        wire.send_bytes(&bytes);
        wire.end_writing();
        assert!(!wire.hear_all().is_empty(), "{bytes:02x?}");
        // Other clients get only their own values.
        let reply = bystander.ask(&json!([3, 9, "api", [["user", "u1"]], 9])).to_string();
        assert!(!reply.contains(CANARY), "{reply}");
    }
    assert_pages_reveal_nothing(&daemon);
    for first in [
        json!([0, 1, 1, {"client": CANARY, "pool": CANARY, "missed": {CANARY: 3}}]),
        json!([0, 1, 1, {"client": CANARY.repeat(30)}]),
        json!([0, 1, 1, {"pool": format!("{CANARY}:")}]),
        json!([0, 1, CANARY]),
        json!([3, 1, "api", [["user", CANARY]]]),
    ] {
        let mut wire = daemon.connect();
        wire.send(&first);
        wire.end_writing();
        assert!(!wire.hear_all().is_empty(), "{first}");
    }
    drop(bystander);
    // Refused before a read, closed within a frame, and at the daemon's stop.
    let wires: Vec<_> = (0..4).map(|_| greeted_at_last(&daemon)).collect();
    let mut refused = daemon.connect();
    refused.hear();
    drop(wires);
    drop(refused);
    let mut last = greeted_at_last(&daemon);
    last.send_bytes(&frame(&json!([3, 1, "api", [["user", CANARY]]]))[..20]);
    daemon.stop();
    let log = daemon.log();
    // In one line, or in two if the log's interval has ended between.
    let timeouts: u32 = log.split(" timeout=").skip(1).map(|rest| rest[..1].parse::<u32>().unwrap()).sum();
    assert!(log.contains("connections.max") && timeouts == 3, "{log}");
    // Only a debug build can be made to panic.
    assert_eq!(log.contains("panicked"), cfg!(debug_assertions), "{log}");
    assert!(!log.contains(CANARY), "{log}");
}

/// No page shows values of callers. The log has no input of operators, which may name a caller.
fn assert_pages_reveal_nothing(daemon: &Daemon) {
    let mut wire = greet(daemon, &json!({"client": CANARY, "pool": "web", "missed": {"timeout": 1}}));
    for id in 0..50 {
        // The name of a domain that does not exist is shown: an application's programmer wrote it.
        for domain in ["app", "api", "no-such"] {
            wire.ask(&json!([3, id, domain, [["user", CANARY, "path", CANARY, CANARY, CANARY]], 1, CANARY]));
        }
        wire.ask(&json!([1, id, "app", [["user", CANARY, "job", "export"]], 1, null, {"idem": CANARY}]));
    }
    wire.ask(&json!([7, 1, "web", CANARY, 400]));
    wire.ask(&json!([3, 1, "api", [["user", CANARY], [CANARY]]]));
    for path in ["/metrics", "/status", "/rules", "/fleet", "/readyz", "/healthz", "/"] {
        let answer = get(daemon, path);
        assert!(!answer.body.contains(CANARY), "{path}: {}", answer.body);
    }
    assert!(get(daemon, "/metrics").body.contains("tidegate_decisions_total"));
    assert_ne!(get(daemon, "/status").json()["callers"]["refused"], json!([]));
    daemon.process.signal(libc::SIGUSR1);
    daemon.await_log(&["INFO", "status", "\"version\"", "\"pools\""]);
    post(daemon, "/reload", &format!("{{\"user\": \"{CANARY}\"}}"));
    post(daemon, &format!("/{CANARY}"), CANARY);
    ask(daemon, &format!("GET /{CANARY}?{CANARY} HTTP/1.1\r\nhost: {CANARY}\r\n{CANARY}: {CANARY}\r\n\r\n"));
}
