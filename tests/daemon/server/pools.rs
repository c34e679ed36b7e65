//! Pools of permitted users and slots: HELLO within and outside the settings.

use crate::prelude::*;

#[test]
fn opens_pool_to_configured_users_and_slots() {
    let mine = rustix::process::geteuid().as_raw();
    let settings = format!(
        "pools: {{web: {{uids: [{mine}], slots_max: 8}}, closed: {{uids: [{}]}}, open: {{}}}}",
        mine + 1
    );
    let daemon = Plan::new().settings(&settings).start();
    let hello = |info: Value| json!([0, 1, 1, info]);
    for info in [
        json!({"pool": "web", "slots": 8}),
        json!({"pool": "web"}),
        json!({"pool": "open", "slots": u32::MAX}),
        json!({"pool": "elsewhere", "slots": 1_000}),
    ] {
        let mut wire = daemon.connect();
        assert_eq!(wire.ask(&hello(info.clone()))[0], 0, "{info}");
        wire.assert_served();
    }
    // Not permitted: the connection waits for another HELLO.
    let mut wire = daemon.connect();
    let reply = wire.ask(&hello(json!({"pool": "closed"})));
    assert_eq!(error_of(&reply), (Some(1), 11), "{reply}");
    assert_eq!(reply[3], format!("the pool `closed` is not open to user {mine}"));
    assert_eq!(wire.ask(&hello(json!({"pool": "open"})))[0], 0);
    wire.assert_served();
    // Too many slots would make a full pool look idle.
    let mut wire = daemon.connect();
    let reply = wire.ask(&hello(json!({"pool": "web", "slots": 9})));
    assert_eq!(error_of(&reply), (Some(1), 9), "{reply}");
    assert_eq!(reply[3], "9 slots are more than the pool `web` allows a process, which is 8");
    wire.assert_ended();
    let line = daemon.await_log(&["WARN", "the pool `closed` is not open to user"]);
    assert!(line.contains("`pools.closed` in the settings"), "{line}");
}
