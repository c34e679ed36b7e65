//! Values from callers stay out of the log in every form.

use serde_json::{Value, json};

use super::daemon::Plan;
use super::msgpack::{frame, framed};
use super::wire::hello;

/// Part of every value sent here and of no other text.
const CANARY: &str = "canary7f3a";

#[test]
fn never_logs_client_values() {
    // The most verbose log.
    let mut daemon = Plan::new().settings("log: {level: trace}\nconnections: {max: 4}").start();
    let mut greeted: Vec<Value> = vec![
        // Refused, panicking, without a rule.
        json!([3, 1, "api", [["user", CANARY]], 9]),
        json!([3, 1, "api", [["user", CANARY, "debug-panic", CANARY]]]),
        json!([3, 1, CANARY, [[CANARY, CANARY]]]),
        // In every other text field.
        json!([1, 1, "api", [["user", CANARY]], {CANARY: 3}, CANARY, {"idem": CANARY, CANARY: CANARY}]),
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
    }
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
    // Refused before a read, closed within a frame, and at the daemon's stop.
    let wires: Vec<_> = (0..4).map(|_| daemon.greeted()).collect();
    let mut refused = daemon.connect();
    refused.hear();
    drop(wires);
    drop(refused);
    let mut last = super::daemon::eventually("a place", || {
        let mut wire = daemon.connect();
        let _ = std::io::Write::write(&mut wire.stream, &frame(&hello()));
        (wire.hear()?[0] == 0).then_some(wire)
    });
    last.send_bytes(&frame(&json!([3, 1, "api", [["user", CANARY]]]))[..20]);
    daemon.process.signal(libc::SIGTERM);
    assert_eq!(daemon.process.exit_code(), Some(0));
    let log = daemon.log();
    assert!(log.contains("connections.max") && log.contains("timeout=1"), "{log}");
    // Only a debug build can be made to panic.
    assert_eq!(log.contains("panicked"), cfg!(debug_assertions), "{log}");
    assert!(!log.contains(CANARY), "{log}");
}
