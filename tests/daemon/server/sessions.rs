//! Sessions over the socket: owners of leases, and the effect of closed connections and exited processes.

use super::work::{acquire, connecting, daemon, free_permits, lease_of};
use crate::prelude::*;

#[test]
fn frees_leases_when_session_does_not_reconnect() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    let (mut comes_back, mut stays_away) =
        (daemon.session(1, json!({})), daemon.session(2, json!({"pid": std::process::id()})));
    let watched = || daemon.process.descriptors_of("pidfd");
    assert_eq!(watched(), 1, "the process behind the one that names it");
    let lease = lease_of(&comes_back.ask(&acquire(1, "back")));
    lease_of(&stays_away.ask(&acquire(1, "away")));
    let left = read_boot_nanos();
    drop((comes_back, stays_away));
    sleep(Duration::from_secs(1));
    let mut comes_back = daemon.session(1, json!({}));
    assert_eq!((free_permits(&mut watcher, "back"), free_permits(&mut watcher, "away")), (1, 1));
    wait_until("the places of who stays away are free", || free_permits(&mut watcher, "away") == 2);
    assert!(read_boot_nanos() - left >= 5_000_000_000, "before its time");
    wait_until("its process is let go", || watched() == 0);
    // A reconnected session keeps its leases, also long after.
    assert_eq!(free_permits(&mut watcher, "back"), 1);
    assert_eq!(comes_back.ask(&json!([2, 2, lease, 0])), json!([2, 2, true]));
}

#[test]
fn frees_leases_of_killed_process_while_child_has_socket() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    let open = || ["socket", "pidfd"].map(|kind| daemon.process.descriptors_of(kind));
    let open_before = open();
    let child = "if os.fork() == 0: print('forked', flush=True)";
    let mut holder = connecting(&daemon, &format!("connect(7)\nconnect(7)\n{child}\nsys.stdin.read()"));
    assert_eq!(holder.line(), "forked\n");
    let mut mate = daemon.session(7, json!({}));
    wait_until("it holds its places", || free_permits(&mut watcher, "u") == 0);
    holder.process.signal(libc::SIGKILL);
    // The child lives, so no connection has closed, and the leases would expire much later.
    wait_until("its places are free", || free_permits(&mut watcher, "u") == 2);
    // A connection of a closed session is useless: its requests would get no leases.
    mate.assert_ended();
    drop(mate);
    wait_until("nothing is left open", || open() == open_before);
    // The name is free again.
    lease_of(&daemon.session(7, json!({"slots": 4})).ask(&acquire(1, "u")));
}

#[test]
fn ignores_pid_unconfirmed_by_kernel() {
    let daemon = daemon();
    let mut watcher = daemon.greeted();
    // The child sends its pid, but the kernel names the parent.
    let mut holder = connecting(&daemon, "connect(1, lambda: os.fork() and os._exit(0))\nsys.stdin.read()");
    assert_eq!(holder.process.exit_code(), Some(0));
    wait_until("the child holds its place", || free_permits(&mut watcher, "u") == 1);
    assert_eq!(daemon.process.descriptors_of("pidfd"), 0);
    sleep(Duration::from_millis(100));
    assert_eq!(free_permits(&mut watcher, "u"), 1, "the end of another process ends nothing here");
}

#[test]
fn ends_abandoned_request_before_and_after_grant() {
    let daemon = daemon();
    let mut late = daemon.session(1, json!({"connection": 1}));
    let mut other = daemon.session(1, json!({"connection": 2, "abandoned": [[1, 30]]}));
    // A report with HELLO, before the grant: its idempotency key is forgotten, the same key makes a new request.
    let named = |id: u64| json!([1, id, "work", [["user", "u"]], 1, null, {"idem": "x"}]);
    let reply = late.ask(&named(30));
    assert_eq!((verdict_of(&reply), &reply[9]), (0, &json!(null)), "{reply}");
    lease_of(&late.ask(&named(40)));
    assert_eq!(free_permits(&mut other, "u"), 1);
    // A report after the grant, with any request; reports on other connections or sessions have no effect.
    for (session, connection, left) in [(1, 3, 1), (9, 1, 1), (1, 1, 2)] {
        let report = json!({"abandoned": [[connection, 40]]});
        let mut wire = daemon.session(session, json!({"connection": 9}));
        wire.send(&json!([5, null, "nowhere", [], 1, report]));
        assert_eq!(free_permits(&mut wire, "u"), left, "{session} {connection}");
    }
    // A report is used up by its grant: the same id can be used again.
    lease_of(&late.ask(&acquire(30, "u")));
}

#[test]
fn returns_grant_whose_reply_cannot_be_written() {
    let daemon = daemon();
    let mut mate = daemon.session(1, json!({}));
    let mut wire = daemon.session(1, json!({}));
    wire.assert_served();
    // A peer that has shut down reading: its last requests are decided, and their replies cannot be written.
    wire.stream.shutdown(std::net::Shutdown::Read).unwrap();
    wire.send_bytes(&[frame(&acquire(1, "u")), frame(&acquire(2, "u"))].concat());
    wire.assert_ended();
    wait_until("both are free", || free_permits(&mut mate, "u") == 2);
    // The session stays connected: nothing else frees the permits within a minute.
    mate.assert_served();
}

#[test]
fn rejects_session_with_other_pool_or_slots() {
    let daemon = daemon();
    let mut wire = daemon.session(1, json!({"pool": "web", "slots": 4}));
    let lease = lease_of(&wire.ask(&acquire(1, "u")));
    for info in
        [json!({"pool": "web", "slots": 5}), json!({"pool": "other", "slots": 4}), json!({"slots": 4})]
    {
        let mut other = daemon.connect();
        let reply = other.ask(&hello_of(1, info));
        assert_eq!(error_of(&reply), (Some(1), 9), "{reply}");
        other.assert_ended();
    }
    assert_eq!(wire.ask(&json!([2, 2, lease, 0])), json!([2, 2, true]));
}
