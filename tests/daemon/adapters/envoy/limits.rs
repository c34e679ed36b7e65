//! Malformed requests, hostile connections, and the end of the daemon. Nothing else is affected.

use super::client::{Ask, Grpc, PATH, ask, framed};
use super::{start, with_envoy};
use crate::adapters::assert_answers_to_the_end;
use crate::prelude::*;
use prost::Message;
use std::io::ErrorKind;

const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNIMPLEMENTED: i32 = 12;
const UNAVAILABLE: i32 = 14;

#[test]
fn rejects_malformed_requests_and_answers_the_next() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let good = framed(&ask("shop", &["user=u1"]).encode_to_vec());
    let message = |ask: &Ask| framed(&ask.encode_to_vec());
    let compressed = [&[1][..], &good[1..]].concat();
    let cut = good[..good.len() - 1].to_vec();
    // Two million empty descriptors or entries would take a hundred bytes each.
    let descriptors = framed(&b"\x12\0".repeat(500_000));
    let entries = framed(&[&b"\x12\xc0\x84\x3d"[..], &b"\x0a\0".repeat(500_000)].concat());
    let many = ask("shop", &["user=u1"; 33]);
    let deep = ask("shop", &[&*"a=b ".repeat(513)]);
    let table: Vec<(&str, Vec<u8>, &[i32])> = vec![
        ("nothing", vec![], &[13]),
        ("half a head", vec![0, 0], &[13]),
        ("a length only", good[..5].to_vec(), &[13]),
        ("half a message", cut, &[INVALID_ARGUMENT]),
        ("compressed", compressed, &[13, UNIMPLEMENTED]),
        ("no protobuf", framed(&[0xff; 40]), &[INVALID_ARGUMENT]),
        ("a wrong type", framed(&[0x08, 1]), &[13]),
        ("an endless group", framed(&[0x0b; 4_000]), &[INVALID_ARGUMENT]),
        ("a length beyond the end", framed(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]), &[INVALID_ARGUMENT, 13]),
        ("no descriptor", message(&ask("shop", &[])), &[INVALID_ARGUMENT]),
        ("no domain", message(&ask("", &["user=u1"])), &[INVALID_ARGUMENT]),
        ("many descriptors", message(&many), &[INVALID_ARGUMENT]),
        ("many entries", message(&deep), &[INVALID_ARGUMENT]),
        ("empty descriptors", descriptors, &[INVALID_ARGUMENT]),
        ("empty entries", entries, &[INVALID_ARGUMENT]),
        ("too large", framed(&vec![0; 1_100_000]), &[RESOURCE_EXHAUSTED]),
    ];
    for (name, body, statuses) in table {
        // A stream may end before all of a large body is sent.
        if let Ok(reply) = envoy.call_raw(PATH, &[], body) {
            assert!(statuses.contains(&reply.status), "{name}: {reply:?}");
        }
        assert_eq!(envoy.ask(&ask("shop", &["plan=x"])).overall_code, 1, "{name}");
    }
    let service = "/envoy.service.ratelimit.v3.RateLimitService/Other";
    for path in ["/", service, "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit"] {
        assert_eq!(envoy.call_raw(path, &[], good.clone()).unwrap().status, UNIMPLEMENTED, "{path}");
    }
    let json = envoy.call_raw(PATH, &[("content-type", "application/json")], good).unwrap();
    assert_eq!(json.status, INVALID_ARGUMENT);
}

#[test]
fn answers_many_streams_of_one_connection() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let asks: Vec<Ask> =
        (0..1_000).map(|number| ask("shop", &[&*format!("user=u{}", number % 250)])).collect();
    let told = envoy.ask_at_once(&asks);
    let refused = told.iter().filter(|told| told.overall_code == 2).count();
    assert_eq!(refused, 500, "two of four pass");
    assert_eq!(metric(&daemon, "tidegate_envoy_connections"), Some(1.0));
}

#[test]
fn streams_that_end_in_a_pause_end_no_connection() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    assert_eq!(envoy.ask(&ask("shop", &["plan=x"])).overall_code, 1);
    daemon.process.signal(libc::SIGSTOP);
    for _ in 0..4 {
        drop(envoy.open_streams(24));
    }
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(envoy.ask(&ask("shop", &["plan=x"])).overall_code, 1);
}

#[test]
fn closes_other_protocols_and_serves_meanwhile() {
    let daemon = with_envoy();
    let connect = || UnixStream::connect(daemon.plan.path("envoy.sock")).unwrap();
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let starts = ["", "GET / HTTP/1.1\r\nhost: x\r\n\r\n", "\0\0\0\u{4}\u{13}\0\0\0", preface, &preface[..9]];
    let mut sockets = starts.map(|start| {
        let mut socket = connect();
        socket.write_all(start.as_bytes()).unwrap();
        socket
    });
    let mut envoy = Grpc::connect(&daemon);
    assert_eq!(envoy.ask(&ask("shop", &["user=u1"])).overall_code, 1);
    daemon.greeted().assert_served();
    for (socket, start) in sockets.iter_mut().zip(starts) {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut read = Vec::new();
        let ended = socket.read_to_end(&mut read).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)), "{start:?} stays: {ended:?}");
    }
    assert_eq!(envoy.ask(&ask("shop", &["user=u1"])).overall_code, 1);
}

/// Streams without a message are counted, as each takes memory until its time is over.
#[test]
fn ends_streams_above_the_limit_of_a_user() {
    let daemon = with_envoy();
    let mut connections: Vec<Grpc> = (0..64).map(|_| Grpc::connect(&daemon)).collect();
    let open: Vec<_> = connections.iter_mut().map(|envoy| envoy.open_streams(32)).collect();
    let mut statuses = Vec::new();
    for (envoy, streams) in connections.iter_mut().zip(open) {
        statuses.extend(envoy.statuses(streams));
    }
    let count = |status| statuses.iter().filter(|of| **of == status).count();
    assert_eq!(count(RESOURCE_EXHAUSTED) + count(DEADLINE_EXCEEDED), 64 * 32);
    assert!(count(RESOURCE_EXHAUSTED) > 0 && count(DEADLINE_EXCEEDED) >= 32, "{}", count(DEADLINE_EXCEEDED));
    assert_eq!(connections[0].ask(&ask("shop", &["user=u1"])).overall_code, 1, "their bytes are free again");
}

/// A client that sends and never reads, up to its window, keeps nothing from others, and the daemon ends in time.
#[test]
fn serves_beside_a_client_that_never_reads() {
    let mut daemon = with_envoy();
    let mut hostile = UnixStream::connect(daemon.plan.path("envoy.sock")).unwrap();
    hostile.set_nonblocking(true).unwrap();
    hostile.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    // Pings, each of which wants an answer.
    let pings = b"\0\0\x08\x06\0\0\0\0\0tidegate".repeat(1_000);
    let mut sent = 0;
    while let Ok(count @ 1..) = hostile.write(&pings) {
        sent += count;
        assert!(sent < 100_000_000, "it is read without end");
    }
    let mut envoy = Grpc::connect(&daemon);
    assert_eq!(envoy.ask(&ask("shop", &["user=u1"])).overall_code, 1);
    daemon.greeted().assert_served();
    daemon.stop();
    assert!(daemon.log().contains("drained: every request received was answered"), "{}", daemon.log());
}

#[test]
fn answers_the_streams_in_flight_at_the_end() {
    assert_answers_to_the_end(with_envoy(), "envoy", |daemon| {
        let mut envoy = Grpc::connect(daemon);
        let body = framed(&ask("shop", &["plan=x"]).encode_to_vec());
        Box::new(move || {
            let Ok(reply) = envoy.call_raw(PATH, &[], body.clone()) else { return false };
            // A decision, or the word that there is none: Envoy passes the request on.
            assert!([0, UNAVAILABLE].contains(&reply.status), "{reply:?}");
            true
        })
    });
}

/// Without a decision in time the call fails, so that Envoy decides by `failure_mode_deny`, and the connection goes on.
#[test]
#[cfg(debug_assertions)]
fn is_unavailable_when_the_decision_is_late() {
    let daemon = start(Plan::new());
    let mut envoy = Grpc::connect(&daemon);
    let late = envoy.call(PATH, &[], &ask("shop", &["user=u1 debug-stall=200"]));
    assert_eq!((late.status, &*late.message), (UNAVAILABLE, "timeout"), "{late:?}");
    wait_until("the thread decides again", || envoy.call(PATH, &[], &ask("shop", &["plan=x"])).status == 0);
    assert!(metric(&daemon, "tidegate_envoy_answers_total{answer=\"degraded\"}") >= Some(1.0));
}
