//! How the daemon stops, and faults that do not stop it.

use crate::prelude::*;
use rustix::net::sockopt::set_socket_send_buffer_size;

fn two_threads() -> Daemon {
    Plan::new().threads(2).start()
}

/// A client that does not read delays the drain by 1 s.
fn unread(daemon: &Daemon) -> Wire {
    let wire = daemon.greeted();
    wire.stream.set_nonblocking(true).unwrap();
    let block = frame(&hit(1, "u")).repeat(50);
    while (&wire.stream).write(&block).is_ok() {}
    wire
}

/// Asserts that the replies end with GOODBYE; returns the number before it.
fn before_goodbye(replies: &[Value]) -> usize {
    let (last, replies) = replies.split_last().expect("a GOODBYE");
    assert_eq!(*last, json!([4, null, "draining"]));
    assert!(replies.iter().all(|reply| reply[0] == 1 || reply[0] == 2), "{replies:?}");
    replies.len()
}

const LIMITED: &str = "tidegate_decisions_total{domain=\"api\",rule=\"per-user\",verdict=\"limit\"}";

#[test]
fn answers_received_requests_before_exit() {
    let mut daemon = two_threads();
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let wire = daemon.greeted();
            // A slow machine too answers what fits within a second.
            set_socket_send_buffer_size(&wire.stream, 16 << 10).unwrap();
            let mut writing = wire.stream.try_clone().unwrap();
            let request = frame(&hit(1, &format!("u{number}")));
            // A small write is complete or fails.
            let writer = thread::spawn(move || {
                std::iter::repeat(()).take_while(|()| writing.write_all(&request).is_ok()).count()
            });
            let reader = thread::spawn(move || {
                let mut wire = wire;
                before_goodbye(&wire.hear_all())
            });
            (writer, reader)
        })
        .collect();
    let mut idle = daemon.greeted();
    wait_until("there is a load", || metric(&daemon, LIMITED) > Some(1_000.0));
    daemon.process.signal(libc::SIGTERM);
    assert_eq!(before_goodbye(&idle.hear_all()), 0);
    for (writer, reader) in clients {
        let (written, answered) = (writer.join().unwrap(), reader.join().unwrap());
        assert_eq!(written, answered);
    }
    assert_eq!(daemon.process.exit_code(), Some(0));
    daemon.await_log(&["drained"]);
}

#[test]
fn answers_connections_queued_before_drain() {
    let mut daemon = two_threads();
    let mut here = daemon.greeted();
    // A stopped daemon accepts nothing, but the kernel buffers its input.
    daemon.process.signal(libc::SIGSTOP);
    let mut knocking: Vec<Wire> = (0..300)
        .map(|_| {
            let mut wire = daemon.connect();
            wire.send_bytes(&[frame(&hello()), frame(&hit(2, "late"))].concat());
            wire
        })
        .collect();
    here.send(&json!([8, 5]));
    daemon.process.signal(libc::SIGTERM);
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(here.hear_all(), [json!([2, 5, true]), json!([4, null, "draining"])]);
    let mut allowed = 0;
    for wire in &mut knocking {
        let replies = wire.hear_all();
        assert_eq!((replies.len(), &replies[0][0]), (3, &json!(0)), "{replies:?}");
        assert_eq!(before_goodbye(&replies[1..]), 1);
        allowed += usize::from(replies[1][2] == 0);
    }
    assert_eq!(allowed, 5);
    assert_eq!(daemon.process.exit_code(), Some(0));
}

#[test]
fn second_signal_exits_at_once() {
    let mut daemon = daemon();
    let _unread = unread(&daemon);
    // A stopped daemon gets both at once.
    daemon.process.signal(libc::SIGSTOP);
    daemon.process.signal(libc::SIGTERM);
    daemon.process.signal(libc::SIGINT);
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(daemon.process.exit_code(), Some(1), "{}", daemon.log());
}

#[test]
fn echo_of_a_signal_counts_once() {
    let mut daemon = daemon();
    // GNU `timeout` signals its child, and then its process group.
    (0..5).for_each(|_| daemon.process.signal(libc::SIGTERM));
    assert_eq!(daemon.process.exit_code(), Some(0), "{}", daemon.log());
    assert!(daemon.log().contains("drained") && !daemon.socket().exists(), "{}", daemon.log());
}

#[test]
fn interrupt_drains_and_waits_briefly_for_clients_that_do_not_read() {
    let mut daemon = daemon();
    let mut idle = daemon.greeted();
    let _unread = unread(&daemon);
    daemon.process.signal(libc::SIGINT);
    assert_eq!(before_goodbye(&idle.hear_all()), 0);
    assert_eq!(daemon.process.exit_code(), Some(0), "{}", daemon.log());
    daemon.await_log(&["did not read their last replies"]);
}
