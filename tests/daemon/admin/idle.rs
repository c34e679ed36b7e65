//! Idle connections and garbage at the operators' listeners delay no request and no decision.

use crate::prelude::*;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps 200 connections open that send nothing or half a head. Replaces closed ones a few at a time, so that
/// a request in progress keeps its position among them.
fn among_idle(connect: impl Fn() -> UnixStream + Sync, meanwhile: impl FnOnce()) {
    let (stopped, are_there) = (AtomicBool::new(false), AtomicBool::new(false));
    let idle = |number: usize| {
        let mut stream = connect();
        stream.set_nonblocking(true).unwrap();
        if number.is_multiple_of(2) {
            let _ = stream.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n");
        }
        stream
    };
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut streams: Vec<_> = (0..200).map(idle).collect();
            are_there.store(true, Ordering::SeqCst);
            while !stopped.load(Ordering::SeqCst) {
                let has_closed = |stream: &mut UnixStream| {
                    !stream.read(&mut [0; 512]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
                };
                let closed = streams
                    .iter_mut()
                    .enumerate()
                    .filter_map(|(number, stream)| has_closed(stream).then_some((number, stream)));
                closed.take(8).for_each(|(number, stream)| *stream = idle(number));
                sleep(Duration::from_millis(50));
            }
        });
        while !are_there.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5));
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        stopped.store(true, Ordering::SeqCst);
        done.unwrap();
    });
}

#[test]
fn scrapes_pass_two_hundred_idle_connections() {
    let daemon = Plan::new().settings("metrics: {listen: \"127.0.0.1:0\"}").start();
    let port = daemon.port_of("metrics are served");
    among_idle(
        || UnixStream::from(OwnedFd::from(TcpStream::connect(("127.0.0.1", port)).unwrap())),
        || {
            (0..20).for_each(|_| assert_eq!(get_over_tcp(port, "/metrics").status, 200));
            assert_eq!(get(&daemon, "/metrics").status, 200, "the admin socket has places of its own");
            assert!(daemon.process.descriptors() < 100, "connections above the bound wait outside");
        },
    );
}

#[test]
fn commands_pass_two_hundred_idle_connections() {
    let daemon = daemon();
    let socket = admin_socket(&daemon);
    let connect = || UnixStream::connect(&socket).unwrap();
    among_idle(connect, || (0..20).for_each(|_| assert_eq!(get(&daemon, "/healthz").status, 200)));
}

#[test]
fn drops_half_sent_head_on_loopback() {
    let daemon = Plan::new().settings("metrics: {listen: \"127.0.0.1:0\"}").start();
    let mut half = TcpStream::connect(("127.0.0.1", daemon.port_of("metrics are served"))).unwrap();
    let mut operator = UnixStream::connect(admin_socket(&daemon)).unwrap();
    half.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    operator.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    // Until the daemon closes, with or without a response.
    half.read_to_end(&mut Vec::new()).unwrap();
    // The other listener has a longer timeout.
    operator.write_all(b"host: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    operator.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn garbage_closes_only_its_own_connection() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(100_000));
    let many: String = (0..5_000).map(|number| format!("x-{number}: y\r\n")).collect();
    let many = format!("GET /healthz HTTP/1.1\r\n{many}\r\n");
    let table: &[&[u8]] = &[
        b"",
        b"\r\n\r\n",
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b"POST /reload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"POST /reload HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /%00 HTTP/1.1\r\nhost: x\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ];
    for bytes in table {
        let stream = UnixStream::connect(admin_socket(&daemon)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let _ = writer.write_all(bytes);
        let _ = writer.shutdown(std::net::Shutdown::Write);
        let answer = String::from_utf8_lossy(&say(stream, b"")).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer}");
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        wire.assert_served();
    }
    // Of pipelined requests only the first is answered.
    let two = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /status HTTP/1.1\r\nhost: x\r\n\r\n";
    let answer = say(UnixStream::connect(admin_socket(&daemon)).unwrap(), two);
    assert_eq!(String::from_utf8_lossy(&answer).matches("HTTP/1.1 200").count(), 1);
    assert_eq!(get(&daemon, "/healthz").status, 200);
}
