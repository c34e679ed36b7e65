//! The limits on connections.

use super::access::other_user;
use crate::prelude::*;

/// Expects `busy` and the end.
fn assert_refused(daemon: &Daemon) {
    let mut wire = daemon.connect();
    let reply = wire.hear().expect("a word before the end");
    assert_eq!(error_of(&reply), (None, 8), "{reply}");
    wire.assert_ended();
}

/// Connects until accepted, after a connection has closed.
pub(crate) fn greeted_at_last(daemon: &Daemon) -> Wire {
    eventually("a place is given back", || {
        let mut wire = daemon.connect();
        // A refusing daemon may have closed before this write.
        let _ = Write::write(&mut wire.stream, &frame(&hello()));
        (wire.hear()?[0] == 0).then_some(wire)
    })
}

#[test]
fn refuses_connections_above_maximum_until_one_closes() {
    for (limit, words) in [("max: 3", "connections.max"), ("per_user: 3", "connections.per_user")] {
        let daemon = Plan::new().settings(&format!("connections: {{{limit}}}")).start();
        let mut wires = [daemon.greeted(), daemon.greeted(), daemon.greeted()];
        for _ in 0..20 {
            assert_refused(&daemon);
        }
        wires.iter_mut().for_each(Wire::assert_served);
        daemon.await_log(&[words]);
        let count = daemon.log().matches(words).count();
        // A busy machine may take longer than the ten seconds of the first eight.
        assert!(count <= 8 || daemon.log().contains("suppressed="), "told not for each: {}", daemon.log());
        let [first, second, third] = wires;
        // Any closed connection frees its slot.
        drop(first);
        let first = greeted_at_last(&daemon);
        assert_refused(&daemon);
        second.end_writing();
        let second = greeted_at_last(&daemon);
        assert_refused(&daemon);
        let mut third = third;
        third.send_bytes(&[0; 4]);
        let _third = greeted_at_last(&daemon);
        assert_refused(&daemon);
        drop((first, second));
    }
}

#[test]
fn serves_other_users_when_one_is_at_maximum() {
    needs!(is_root());
    let daemon = Plan::new().settings("connections: {per_user: 1}").open_to_all().start();
    let _mine = daemon.greeted();
    assert_refused(&daemon);
    assert_eq!(other_user(&daemon, &[json!([8, 1])]), [json!([2, 1, true])], "the other user is served");
}

#[test]
fn bounds_unread_replies_of_one_user() {
    // Long replies: the kernel buffers a few of each, and the daemon the others.
    let long = format!(
        "domain: api\nlimits:\n  - {{name: a, key: [], rate: 1000000/s, help: \"https://example.com/{}\"}}\n",
        "x".repeat(480)
    );
    let plan = Plan::new().rules("api.yaml", &long);
    let daemon = plan.start();
    let mut here = daemon.greeted();
    let before = daemon.process.resident_kib();
    let requests = frame(&hit(2, "u")).repeat(64);
    let unread: Vec<Wire> = (0..340).map(|_| daemon.greeted()).collect();
    unread.iter().for_each(|wire| wire.stream.set_nonblocking(true).unwrap());
    // More replies than the kernel buffers. All connections fill up together: the daemon closes one that
    // reads nothing for 5 s, on a busy machine perhaps the first before the last is full.
    for _ in 0..14 {
        for wire in &unread {
            let _ = Write::write(&mut &wire.stream, &requests);
        }
    }
    daemon.await_log(&["WARN", "hold 16 MiB of unread replies", "some are closed"]);
    here.assert_served();
    daemon.greeted().assert_served();
    let grown = daemon.process.resident_kib().saturating_sub(before);
    assert!(grown < 40 << 10, "{grown} KiB for 340 peers that do not read");
    drop(unread);
    // The daemon has released all.
    let mut wire = greeted_at_last(&daemon);
    wire.assert_served();
}
