//! The handshake of a connection.

use crate::prelude::*;

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
    // The smaller of both versions.
    let mut newer = daemon.connect();
    let welcome = newer.ask(&json!([0, 1, 9, {"something_new": [1, 2]}, "and more"]));
    assert_eq!(json!([welcome[0], welcome[2]]), json!([0, 1]));
    newer.assert_served();
}

#[test]
fn boot_number_changes_with_each_start() {
    let (one, other) = (daemon(), Plan::new().settings("mode: shadow").start());
    let [first, again, shadow] = [&one, &one, &other].map(|daemon| daemon.connect().ask(&hello())[3].take());
    assert_eq!(first["boot"], again["boot"]);
    assert_ne!(first["boot"], shadow["boot"]);
    assert_eq!(shadow["mode"], "shadow");
}
