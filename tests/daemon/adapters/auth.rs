//! Requests of proxies, and of clients over TCP.

use super::{RULES, connect, exchange, patient, post, send, with_http};
use crate::prelude::*;
use std::net::TcpStream;

const AUTH: &str = "auth: {domain: shop, attributes: {user: X-User, agent: User-Agent, mail: X-Mail}}";

#[test]
fn answers_proxies_by_the_headers_of_the_settings() {
    let daemon = with_http(AUTH);
    let mut http = connect(&daemon);
    let mut auth =
        |query: &str, head: &[&str]| exchange(&mut http, &format!("GET /v1/auth{query}"), head, "");
    let names = |answer: &Answer, name: &str| answer.head.contains(&format!("\r\n{name}: "));
    for remaining in [1, 0] {
        let allowed = auth("", &["x-user: u1"]);
        assert_eq!((allowed.status, &*allowed.body), (204, ""), "{allowed:?}");
        assert!(
            allowed.head.contains(&format!("\r\nratelimit: \"per-user\";r={remaining};t=3600\r\n")),
            "{allowed:?}"
        );
        assert!(names(&allowed, "ratelimit-policy") && !names(&allowed, "retry-after"), "{allowed:?}");
    }
    // A proxy appends the caller's address to the lines of its client.
    let limited = auth("", &["x-user: forged", "x-user: u1"]);
    assert_eq!(limited.status, 429, "{limited:?}");
    assert!(limited.head.contains("\r\ncontent-type: application/problem+json\r\n"), "{limited:?}");
    assert!(
        limited.head.contains("\r\nretry-after: 3600\r\n") && names(&limited, "ratelimit"),
        "{limited:?}"
    );
    assert_eq!(
        (limited.json()["status"].clone(), limited.json()["domain"].clone()),
        (json!(429), json!("shop"))
    );
    let for_nginx = auth("?refusal=403", &["x-user: u1"]);
    assert_eq!((for_nginx.status, names(&for_nginx, "retry-after")), (403, true), "{for_nginx:?}");
    assert!(for_nginx.head.contains("\r\ntidegate-status: 429\r\n"), "{for_nginx:?}");
    let denied = auth("", &["user-agent: bot"]);
    assert_eq!((denied.status, names(&denied, "retry-after")), (403, false), "{denied:?}");
    assert_eq!(auth("", &[]).status, 204, "without attributes no rule matches");
    assert_eq!(auth("", &["x-user;", "x-mail: m"]).status, 400, "no header");
    let daemon = with_http(AUTH);
    // A proxy cannot wait: the queue of the rule stays empty.
    let mails = [204, 429].map(|_| send(&daemon, "POST /v1/auth", &["x-mail: m1"], "body").status);
    assert_eq!(mails, [204, 429]);
    assert_eq!(send(&daemon, "GET /v1/auth?refusal=429", &[], "").status, 400);
}

/// The uid decides, as on the socket: this domain is for another user.
#[test]
fn refuses_users_without_the_domain() {
    let settings =
        format!("domains: {{shop: {{uids: [65534]}}}}\nadapters: {{http: {{socket: http.sock, {AUTH}}}}}");
    let daemon = patient(RULES).settings(&settings).start();
    daemon.await_log(&["HTTP is served"]);
    let answer = post(&daemon, "/v1/hit", &[], &json!({"domain": "shop"}));
    assert_eq!((answer.status, answer.error().contains("not open")), (403, true), "{answer:?}");
    let auth = send(&daemon, "GET /v1/auth", &["x-user: u1"], "");
    assert_eq!(
        (auth.status, &*auth.json()["detail"].to_string()),
        (503, "\"The request could not be judged. Try again in 1 s.\"")
    );
    assert_eq!(post(&daemon, "/v1/hit", &[], &json!({"domain": "api"})).status, 200);
}

#[test]
fn asks_for_the_token_and_a_listed_domain_over_tcp() {
    let token = "0123456789abcdef";
    let tcp = "adapters: {http: {listen: \"127.0.0.1:0\", token_file: token, domains: [api], auth: {domain: shop, attributes: {user: X-User}}}}";
    let daemon = patient(RULES).settings(tcp).start();
    daemon.await_log(&["HTTP is not served", "token: No such file", "it is tried again every second"]);
    let token_file = daemon.plan.path("token");
    std::os::unix::fs::symlink("/dev/zero", &token_file).unwrap();
    daemon.await_log(&["a file of a token has at most 4096 bytes"]);
    fs::remove_file(&token_file).unwrap();
    make_pipe(&token_file);
    daemon.await_log(&["a token has at least 16 bytes"]);
    has(&daemon.run("status"), &["HTTP is not served: its clients get no answer"]);
    fs::remove_file(&token_file).unwrap();
    fs::write(&token_file, format!("{token}\n")).unwrap();
    let port = daemon.port_of("HTTP is served");
    assert!(!daemon.run("status").contains("is not served"));
    let ask = |request: &str, head: &str, body: &str| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let bytes = super::request_bytes(request, &[head, "connection: close"], body, "");
        let stream = UnixStream::from(std::os::fd::OwnedFd::from(stream));
        Answer::read(&say(stream, &bytes)).expect("an answer")
    };
    let right = format!("tidegate-token: {token}");
    let (api, shop) = (r#"{"domain": "api"}"#, r#"{"domain": "shop"}"#);
    let table = [
        ("POST /v1/hit", &*right, api, 200),
        ("POST /v1/hit", &*right, shop, 403),
        ("POST /v1/charge", &*right, shop, 403),
        ("GET /v1/auth", &*right, "", 204),
        ("GET /v1/auth", "x-user: u1", "", 401),
        ("POST /v1/hit", "x-user: u1", api, 401),
        ("POST /v1/hit", "tidegate-token: 0123456789abcdeF", api, 401),
        ("POST /v1/hit", "tidegate-token: 0123456789abcdef0", api, 401),
        ("POST /v1/hit", "tidegate-token: ", api, 401),
        ("GET /v1/openapi.json", "x-user: u1", "", 401),
        ("GET /v1/openapi.json", &*right, "", 200),
    ];
    for (request, head, body, status) in table {
        assert_eq!(ask(request, head, body).status, status, "{request} {head} {body}");
    }
    assert!(!daemon.log().contains(token), "{}", daemon.log());
}
