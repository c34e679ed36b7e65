//! Connections of the adapter: too many, half requests, and the end of the daemon. The socket is not affected.

use super::{assert_answers_to_the_end, connect, exchange, request_bytes, with_http};
use crate::prelude::*;
use std::net::TcpStream;

const HIT: &str = "POST /v1/hit";

fn body() -> String {
    json!({"domain": "shop"}).to_string()
}

#[test]
fn closes_connections_above_the_limit_of_a_user() {
    let settings =
        ["http", "resp", "envoy"].map(|name| format!("{name}: {{socket: {name}.sock}}")).join(", ");
    let daemon = Plan::new().settings(&format!("adapters: {{{settings}}}")).start();
    for (adapter, most) in [("http", 512), ("resp", 256), ("envoy", 256)] {
        let path = daemon.plan.path(&format!("{adapter}.sock"));
        let connect = || eventually("it listens", || UnixStream::connect(&path).ok());
        let count = |of: &str| metric(&daemon, &format!("tidegate_{adapter}_connections{of}"));
        let held = || metric(&daemon, "tidegate_held_bytes{users=\"all\"}").unwrap();
        let before = held();
        let open: Vec<_> = (0..most).map(|_| connect()).collect();
        wait_until("all are let in", || count("") == Some(most.into()));
        assert!(held() >= before + f64::from(most) * 16_384.0, "{adapter}: their memory is shown");
        let mut refused = connect();
        refused.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(refused.read(&mut [0; 64]).unwrap_or(0), 0, "closed without an answer");
        assert!(count("") == Some(most.into()) && count("_refused_total") >= Some(1.0), "{adapter}");
        daemon.await_log(&["WARN", "as its part of `connections.per_user` allows: more are closed", "user="]);
        let name = if adapter == "envoy" { "Envoy" } else { &adapter.to_uppercase() };
        has(&daemon.run("status"), &[&format!("not let in by {name}: 1 connection; keep them open")]);
        daemon.greeted().assert_served();
        drop(open);
        wait_until("the places are free", || count("") == Some(0.0));
    }
}

#[test]
fn ends_half_requests_and_serves_others_meanwhile() {
    let daemon = with_http("");
    let halves = [
        ("", ""),
        ("POST /v1/hit HT", ""),
        ("POST /v1/hit HTTP/1.1\r\nhost: x\r\n", ""),
        ("POST /v1/hit HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{\"domain\"", "HTTP/1.1 408 "),
        ("no HTTP\r\n\r\n", "HTTP/1.1 400 "),
        ("\0\0\0\u{4}\u{13}", "HTTP/1.1 400 "),
    ];
    let mut sockets = halves.map(|(half, _)| {
        let mut http = connect(&daemon);
        http.write_all(half.as_bytes()).unwrap();
        http
    });
    let mut other = connect(&daemon);
    assert_eq!(exchange(&mut other, HIT, &[], &body()).json()["degraded"], false);
    daemon.greeted().assert_served();
    for (http, (half, answer)) in sockets.iter_mut().zip(halves) {
        http.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut read = String::new();
        http.read_to_string(&mut read).unwrap_or_else(|error| panic!("{half:?} stays: {error}"));
        assert!(read.starts_with(answer), "{half:?}: {read:?}");
    }
}

#[test]
fn reads_large_heads_to_their_end() {
    let daemon = with_http("");
    let fields: Vec<String> = (0..500).map(|n| format!("x-{n}: y")).collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    assert_eq!(exchange(&mut connect(&daemon), HIT, &fields, &body()).json()["degraded"], false);
    let mut http = connect(&daemon);
    http.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("{HIT} HTTP/1.1\r\nhost: x\r\ncookie: {}\r\n\r\n", "x".repeat(1_000_000));
    http.write_all(head.as_bytes()).expect("a proxy takes an error for a daemon that is down");
    let mut read = String::new();
    http.read_to_string(&mut read).unwrap();
    assert!(read.starts_with("HTTP/1.1 431 "), "{read:?}");
    assert_eq!(metric(&daemon, r#"tidegate_http_answers_total{answer="rejected"}"#), Some(1.0));
    let malformed =
        say(connect(&daemon), format!("{HIT} HTTP/1.1\r\nhost: x\r\ncookie: \u{1}\r\n\r\n").as_bytes());
    assert!(malformed.starts_with(b"HTTP/1.1 400 "), "{malformed:?}");
    daemon.await_log(&["WARN", "was not judged", "its head is malformed"]);
    assert_eq!(metric(&daemon, r#"tidegate_http_answers_total{answer="rejected"}"#), Some(2.0));
}

#[test]
fn bounds_the_bodies_of_a_user() {
    let daemon = with_http("");
    let half = |_| {
        let mut http = connect(&daemon);
        let head = format!("{HIT} HTTP/1.1\r\nhost: x\r\ncontent-length: 524288\r\n\r\n{{");
        http.write_all(head.as_bytes()).unwrap();
        http
    };
    let halves: Vec<_> = (0..16).map(half).collect();
    let large = format!("{}{}", body(), " ".repeat(100_000));
    let status = |body: &str| exchange(&mut connect(&daemon), HIT, &[], body).status;
    wait_until("they take all of 8 MiB", || status(&large) == 503);
    assert_eq!(status(&body()), 200, "a small one takes nothing of it");
    drop(halves);
    wait_until("the bytes are free", || status(&large) == 200);
}

#[test]
fn answers_the_requests_in_flight_at_the_end() {
    assert_answers_to_the_end(with_http(""), "http", |daemon| {
        let mut http = connect(daemon);
        http.set_read_timeout(Some(PATIENCE)).unwrap();
        let bytes = super::request_bytes(HIT, &[], &body(), "");
        let mut part = [0; 4_096];
        Box::new(move || {
            let Ok(count @ 1..) = http.write_all(&bytes).and_then(|()| http.read(&mut part)) else {
                return false;
            };
            let answer = String::from_utf8_lossy(&part[..count]);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            true
        })
    });
}

#[test]
fn makes_removed_sockets_again() {
    let adapters = ["http", "resp", "envoy"];
    let settings = adapters.map(|name| format!("{name}: {{socket: {name}.sock}}")).join(", ");
    let daemon = Plan::new().settings(&format!("adapters: {{{settings}}}")).start();
    let paths = adapters.map(|name| daemon.plan.path(&format!("{name}.sock")));
    let connect = |path: &Path| eventually("it listens", || UnixStream::connect(path).ok());
    let mut before = connect(&paths[0]);
    assert_eq!(exchange(&mut before, HIT, &[], &body()).json()["degraded"], false);
    for path in &paths {
        let _ = connect(path);
        std::fs::remove_file(path).unwrap();
    }
    paths.iter().for_each(|path| drop(connect(path)));
    for http in [&mut before, &mut connect(&paths[0])] {
        assert_eq!(exchange(http, HIT, &[], &body()).json()["degraded"], false);
    }
    daemon.await_log(&["WARN", "the socket of RESP was removed or replaced: it is made again", "resp.sock"]);
}

/// A daemon with HTTP over TCP, and its address.
fn with_tcp(settings: &str) -> (Daemon, std::net::SocketAddr) {
    let tcp = "adapters: {http: {listen: \"127.0.0.1:0\", token_file: token, domains: [shop]}}";
    let plan = super::patient(super::RULES).settings(&format!("{settings}{tcp}"));
    std::fs::write(plan.path("token"), TOKEN).unwrap();
    let daemon = plan.start();
    let port = daemon.port_of("HTTP is served");
    (daemon, ([127, 0, 0, 1], port).into())
}

const TOKEN: &str = "0123456789abcdef";

#[test]
fn connects_over_tcp_wait_for_no_accept() {
    let (daemon, address) = with_tcp("");
    daemon.process.signal(libc::SIGSTOP);
    let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(1));
    let connected: Vec<_> = (0..400).map_while(|number| connect(number).ok()).collect();
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(connected.len(), 400);
}

#[test]
fn connections_without_the_token_give_way() {
    let (daemon, address) = with_tcp("connections: {max: 64, per_user: 16}\n");
    let connect = || TcpStream::connect(address).unwrap();
    let count = || metric(&daemon, "tidegate_http_connections").unwrap();
    let request = request_bytes(HIT, &[&format!("tidegate-token: {TOKEN}")], &body(), "");
    let ask = |mut known: &TcpStream| {
        known.set_read_timeout(Some(PATIENCE)).unwrap();
        known.write_all(&request).unwrap();
        let mut head = [0; 12];
        let read = known.read(&mut head).unwrap_or(0);
        assert_eq!(str::from_utf8(&head[..read]).unwrap(), "HTTP/1.1 200");
        assert!(known.read(&mut [0; 4_096]).unwrap() > 0);
    };
    let known: Vec<TcpStream> = (0..7).map(|_| connect()).collect();
    known.iter().for_each(ask);
    let strangers: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    wait_until("they are let in", || count() >= 8.0);
    ask(&connect());
    known.iter().for_each(ask);
    assert!(count() <= 8.0);
    drop(strangers);
}
