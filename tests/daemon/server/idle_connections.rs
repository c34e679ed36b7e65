//! Surplus idle connections of a session are closed before a new connection is refused.

use crate::prelude::*;

/// An accepted or refused connection.
fn newcomer(daemon: &Daemon) -> Wire {
    let mut wire = daemon.connect();
    // A refused connection takes no HELLO.
    let _ = Write::write_all(&mut wire.stream, &frame(&json!([0, 1, 1])));
    wire.hear();
    wire
}

fn goodbye() -> Value {
    json!([4, null, "idle"])
}

/// Longer than a connection must be unused to be idle.
fn become_idle() {
    sleep(Duration::from_millis(150));
}

#[test]
fn closes_idle_surplus_connections_for_new_sessions() {
    let daemon = Plan::new().settings("connections: {max: 2000, per_user: 1024}").start();
    let mut sessions: Vec<Vec<Wire>> = Vec::new();
    for session in 0..17 {
        if session == 16 {
            become_idle();
        }
        sessions.push((0..64).map(|_| daemon.session(session, json!({}))).collect());
    }
    let mut late = daemon.session(17, json!({}));
    assert_eq!(verdict_of(&late.ask(&json!([3, 1, "api", [["user", "late"]]]))), 0);
    // Every session keeps connections that are served.
    for session in &mut sessions {
        let served = session.iter_mut().filter_map(|wire| {
            let has_ended = wire.has_more() && wire.hear() == Some(goodbye());
            (!has_ended && wire.is_served()).then_some(())
        });
        assert!(served.count() >= 4);
    }
    assert!(!daemon.log().contains("more are refused"), "{}", daemon.log());
}

#[test]
fn decides_no_unanswered_request_of_closed_connection() {
    let rules = "domain: api\nlimits:\n  - {name: many, key: [user], rate: 1/h, burst: 1000}\n";
    let daemon = Plan::new().rules("api.yaml", rules).settings("connections: {per_user: 24}").start();
    let request = frame(&json!([3, 7, "api", [["user", "moment"]]]));
    let (mut answered, mut unread) = (0, 0);
    // Usually the first round has both: requests before, during and after the new connections.
    for round in 0..10 {
        if answered > 0 && unread > 0 {
            break;
        }
        let mut burst: Vec<Wire> = (0..24).map(|_| daemon.session(round, json!({}))).collect();
        become_idle();
        let (before, others) = burst.split_at_mut(4);
        let (meanwhile, after) = others.split_at_mut(16);
        // A closed connection fails the write.
        let ask = |wire: &mut Wire| drop(Write::write_all(&mut wire.stream, &request));
        before.iter_mut().for_each(ask);
        let newcomers: Vec<_> = thread::scope(|threads| {
            let joining = threads.spawn(|| (0..8).map(|_| newcomer(&daemon)).collect::<Vec<_>>());
            meanwhile.iter_mut().for_each(ask);
            joining.join().unwrap()
        });
        after.iter_mut().for_each(ask);
        for wire in &mut burst {
            wire.end_writing();
            let replies = wire.hear_all();
            // Replies arrive even if the daemon closes with unread input.
            match replies.as_slice() {
                [reply] if reply[0] == 1 => answered += 1,
                // Idle again before the new connections.
                [reply, word] if reply[0] == 1 && *word == goodbye() => answered += 1,
                [only] if *only == goodbye() => unread += 1,
                other => panic!("a decision or a goodbye: {other:?}"),
            }
        }
        drop((burst, newcomers));
        wait_until("all places are free", || daemon.process.descriptors_of("socket") < 12);
    }
    assert!(answered > 0 && unread > 0, "{answered} answered, {unread} not judged");
    // Exactly the answered requests were charged.
    let mut wire = daemon.greeted();
    let reply = wire.ask(&json!([4, 1, "api", [["user", "moment"]]]));
    assert_eq!(reply[6].as_u64().unwrap(), 1_000 - answered, "{reply}");
}
