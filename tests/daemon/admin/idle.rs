//! Idle connections delay no requests, at either HTTP listener of the daemon.

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
