//! The handshake of a connection.

use serde_json::json;

use super::daemon::{Plan, daemon};
use super::msgpack::frame;
use super::wire::{error_of, hello, hit, verdict_of};

#[test]
fn welcome_has_all_fields() {
    let daemon = daemon();
    let info = json!({"client": "test/1.0", "pid": 7, "pool": "web", "slots": 4, "connection": 3});
    let welcome = daemon.connect().ask(&json!([0, 77, 1, info]));
    assert_eq!((&welcome[0], &welcome[1], &welcome[2]), (&json!(0), &json!(77), &json!(1)));
    let info = &welcome[3];
    assert_eq!(info["server"], concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    assert!(info["boot"].as_u64().unwrap() > 0);
    assert_eq!((&info["connection"], &info["frame_bytes_max"]), (&json!(3), &json!(16_384)));
    assert_eq!(info["mode"], "enforce");
    assert_eq!(welcome.as_array().unwrap().len(), 4);
}

#[test]
fn boot_number_changes_with_each_start() {
    let (one, other) = (daemon(), Plan::new().settings("mode: shadow").start());
    let boot = |welcome: &serde_json::Value| welcome[3]["boot"].as_u64().unwrap();
    let first = one.connect().ask(&hello());
    assert_eq!(boot(&first), boot(&one.connect().ask(&hello())));
    let shadow = other.connect().ask(&hello());
    assert_ne!(boot(&first), boot(&shadow));
    assert_eq!(shadow[3]["mode"], "shadow");
}

#[test]
fn answers_requests_pipelined_behind_hello() {
    let daemon = daemon();
    let mut wire = daemon.connect();
    let mut bytes = frame(&hello());
    bytes.extend(frame(&hit(2, "pipelined")));
    bytes.extend(frame(&json!([8, 3])));
    wire.send_bytes(&bytes);
    let replies = wire.hear_together();
    assert_eq!(replies.len(), 3, "{replies:?}");
    assert_eq!(replies[0][0], 0);
    assert_eq!(verdict_of(&replies[1]), 0);
    assert_eq!(replies[2], json!([2, 3, true]));
}

#[test]
fn rejects_second_hello() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    assert_eq!(error_of(&wire.ask(&json!([0, 9, 1]))), (Some(9), 6));
    wire.assert_served();
}

#[test]
fn negotiates_newer_version_and_rejects_version_0() {
    let daemon = daemon();
    let mut newer = daemon.connect();
    let welcome = newer.ask(&json!([0, 1, 9, {"something_new": [1, 2]}, "and more"]));
    assert_eq!((&welcome[0], &welcome[2]), (&json!(0), &json!(1)));
    newer.assert_served();
    let mut nothing = daemon.connect();
    assert_eq!(error_of(&nothing.ask(&json!([0, 5, 0]))), (Some(5), 3));
    nothing.assert_ended();
}

#[test]
fn rejects_requests_before_hello() {
    let daemon = daemon();
    for request in [hit(2, "early"), json!([8, 2]), json!([2, null, 5]), json!([200, 2])] {
        let mut wire = daemon.connect();
        // In one write, as the daemon closes the connection after the first frame.
        wire.send_bytes(&[frame(&request), frame(&hello())].concat());
        let reply = wire.hear().unwrap();
        assert_eq!(error_of(&reply).1, 4, "{request}: {reply}");
        wire.assert_ended();
    }
    // No request was decided.
    let peek = daemon.greeted().ask(&json!([4, 1, "api", [["user", "early"]]]));
    assert_eq!(peek[6], 5, "{peek}");
}

#[test]
fn accepts_hello_after_an_invalid_one() {
    let daemon = daemon();
    let mut wire = daemon.connect();
    assert_eq!(error_of(&wire.ask(&json!([0, 3, 1, {"slots": "many"}]))), (Some(3), 6));
    assert_eq!(wire.ask(&hello())[0], 0);
    wire.assert_served();
}
