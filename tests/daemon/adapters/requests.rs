//! Requests in JSON: every verdict, every wrong body.

use super::{Answer, connect, exchange, post, request_bytes, send, start, with_http};
use crate::prelude::*;
use std::net::Shutdown;

const SESSION: &[&str] = &["tidegate-session: one"];

/// Ops and bodies in order, and fields of each decision; the domain is `shop` unless the body names another.
const VERDICTS: &[(&str, &str, &str)] = &[
    ("peek", r#"{"attributes": {"user": "u1"}}"#, ALLOW),
    ("hit", r#"{"attributes": {"user": "u1"}}"#, r#"{"rule": "per-user", "limit": 2, "remaining": 1}"#),
    ("hit", r#"{"attributes": {"user": "u1"}}"#, r#"{"remaining": 0, "window": 7200.0, "retry_after": 0.0}"#),
    ("hit", r#"{"attributes": {"user": "u1"}}"#, r#"{"verdict": "limit", "allowed": false, "status": 429}"#),
    ("hit", r#"{"attributes": {"user": "u1"}}"#, r#"{"remaining": 0, "lease": null}"#),
    ("peek", r#"{"attributes": {"user": "u1"}}"#, r#"{"help": "https://example.com/limits"}"#),
    ("hit", r#"{"attributes": {"agent": "bot"}}"#, r#"{"verdict": "deny", "status": 403, "rule": "bots"}"#),
    ("hit", r#"{"queued": 0.6}"#, r#"{"verdict": "shed", "status": 503, "rule": "default/queue_age"}"#),
    ("hit", r#"{"queued": 0.6, "priority": "critical"}"#, ALLOW),
    ("hit", r#"{"attributes": {"mail": "m1"}}"#, r#"{"verdict": "allow", "wait": 0.0}"#),
    (
        "hit",
        r#"{"attributes": {"mail": "m1"}}"#,
        r#"{"verdict": "wait", "allowed": true, "status": 200, "rule": "mails"}"#,
    ),
    ("hit", r#"{"attributes": {"mail": "m1"}, "max_wait": 0}"#, r#"{"verdict": "limit", "rule": "mails"}"#),
    ("acquire", r#"{"attributes": {"job": "j1"}}"#, r#"{"rule": "exports", "remaining": 0, "window": 0.0}"#),
    (
        "acquire",
        r#"{"attributes": {"job": "j1"}}"#,
        r#"{"verdict": "limit", "rule": "exports", "lease": null}"#,
    ),
    (
        "hit",
        r#"{"descriptors": [[["user", "u2"]], [["model", "m"]]], "cost": {"tokens": 7, "requests": 2}, "all": true}"#,
        r#"{"verdict": "allow", "rule": "per-user"}"#,
    ),
    ("hit", r#"{"attributes": {"user": "u3"}, "cost": 3}"#, r#"{"verdict": "limit", "retry_after": null}"#),
    ("hit", r#"{"domain": "nowhere"}"#, r#"{"verdict": "allow", "notes": [["unmatched", "domain"]]}"#),
    ("hit", r#"{"attributes": {"user": ""}}"#, r#"{"verdict": "allow", "rule": null}"#),
    ("hit", r#"{"attributes": {"user": null}}"#, r#"{"verdict": "allow", "rule": null}"#),
];

const ALLOW: &str =
    r#"{"allowed": true, "verdict": "allow", "status": 200, "degraded": false, "message": "Allowed."}"#;

/// The fields of an object of JSON.
fn fields(text: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn answers_every_verdict() {
    let daemon = with_http("");
    for (op, body, expected) in VERDICTS {
        let mut request = fields(r#"{"domain": "shop"}"#);
        request.extend(fields(body));
        let answer = post(&daemon, &format!("/v1/{op}"), SESSION, &request.into());
        assert_eq!(answer.status, 200, "{op} {body}: {answer:?}");
        let decision = answer.json();
        for (field, value) in fields(expected) {
            assert_eq!(decision[&field], value, "{op} {body}: {field} of {decision}");
        }
        let retry = decision["headers"].get("Retry-After").is_some();
        let refused = decision["allowed"] == false && !decision["retry_after"].is_null();
        assert_eq!(retry, refused, "{decision}");
    }
    let body = json!({"domain": "shop", "attributes": {"user": "u2"}, "all": true});
    let limits = post(&daemon, "/v1/peek", &[], &body).json()["all"][0].take();
    let seen = ["rule", "limit", "remaining", "window"].map(|field| &limits[field]);
    assert_eq!(json!(seen), json!(["per-user", 2, 0, 7200.0]), "{limits}");
}

/// The same budget as the socket.
#[test]
fn shares_budgets_with_the_socket() {
    let daemon = with_http("");
    let mut wire = daemon.greeted();
    let mut http = connect(&daemon);
    let body = json!({"domain": "api", "attributes": {"user": "u1"}}).to_string();
    for round in 0..2_u64 {
        assert_eq!(verdict_of(&wire.ask(&hit(round + 1, "u1"))), 0);
        assert_eq!(exchange(&mut http, "POST /v1/hit", &[], &body).json()["remaining"], 3 - 2 * round);
    }
    assert_eq!(exchange(&mut http, "POST /v1/hit", &[], &body).json()["verdict"], "allow");
    assert_eq!(verdict_of(&wire.ask(&hit(9, "u1"))), 1);
    has(&daemon.run("status --json"), &["per-user"]);
}

#[test]
fn charges_and_refunds_once() {
    let daemon = with_http("");
    let of = |path: &str, more: Value| {
        let mut body = json!({"domain": "shop", "attributes": {"model": "m"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(&daemon, path, SESSION, &body).json()
    };
    let done = |ok: bool| json!({"ok": ok, "degraded": false, "reason": null});
    let remaining = || of("/v1/peek", json!({"cost": {"tokens": 1}}))["remaining"].clone();
    for retry in [false, true] {
        assert_eq!(of("/v1/hit", json!({"cost": {"tokens": 10}, "idem": "a"}))["remaining"], 90, "{retry}");
    }
    assert_eq!(of("/v1/charge", json!({"amount": {"tokens": 5}})), done(true));
    assert_eq!(remaining(), 85);
    let refund = json!({"amount": {"tokens": -4}, "of": {"idem": "a"}});
    assert_eq!([of("/v1/charge", refund.clone()), of("/v1/charge", refund)], [done(true), done(false)]);
    assert_eq!(remaining(), 89);
    // Numbers beyond 64 bits are the largest: more than the grant had, and more than is left.
    let grant = r#", "of": {"idem": "a"}"#;
    for (amount, of, ok) in
        [("-1e30", grant, false), ("-9223372036854775809", grant, false), ("1e400", "", true)]
    {
        let fields = r#""domain": "shop", "attributes": {"model": "m"}"#;
        let body = format!(r#"{{{fields}, "amount": {{"tokens": {amount}}}{of}}}"#);
        assert_eq!(send(&daemon, "POST /v1/charge", SESSION, &body).json(), done(ok), "{amount}");
    }
    assert_eq!(remaining(), 0);
    let unnamed = json!({"domain": "shop", "attributes": {"model": "m"}, "amount": {"tokens": -1}});
    let unnamed = post(&daemon, "/v1/charge", &[], &unnamed);
    assert_eq!((unnamed.status, unnamed.error().contains("of")), (403, true), "{unnamed:?}");
}

/// An odd value of a caller must not let its requests pass unjudged.
#[test]
fn judges_odd_values() {
    let daemon = with_http("");
    let verdict = |body: &str| {
        let answer = send(&daemon, "POST /v1/hit", SESSION, body);
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        let decision = answer.json();
        (decision["verdict"].as_str().unwrap().to_owned(), decision["retry_after"].is_null())
    };
    // Each value twice within its burst, then once above it.
    let texts = [r#""\ud800""#, r#""a\udc00b""#, r#""\ud800\n""#, r#""\u0000""#];
    let bodies = texts.iter().flat_map(|text| {
        [
            format!(r#"{{"domain": "shop", "attributes": {{"user": {text}, "user": "u1"}}}}"#),
            format!(r#"{{"domain": "shop", "descriptors": [[["user", {text}]]], "priority": {text}}}"#),
            format!(r#"{{"domain": "shop", "attributes": {{"user": {text}}}, "idem": {text}}}"#),
        ]
    });
    for bodies in bodies.collect::<Vec<_>>().chunks(3) {
        let verdicts: Vec<_> = bodies.iter().map(|body| verdict(body).0).collect();
        assert_eq!(verdicts, ["allow", "allow", "limit"], "{bodies:?}");
    }
    let of_first = |second| {
        verdict(&format!(r#"{{"domain": "shop", "attributes": {{"user": "u2", "user": "{second}"}}}}"#)).0
    };
    assert_eq!(["a", "b", "c"].map(of_first), ["allow", "allow", "limit"], "the first value counts");
    for cost in ["18446744073709551616", "1e30", "1e400", r#"{"requests": 1e400, "requests": 1}"#] {
        let body = format!(r#"{{"domain": "shop", "attributes": {{"user": "u3"}}, "cost": {cost}}}"#);
        assert_eq!(verdict(&body), ("limit".to_owned(), true), "{cost}");
    }
}

#[test]
fn answers_a_client_that_writes_no_more() {
    let daemon = with_http("");
    for verdict in ["allow", "allow", "limit"] {
        let mut http = connect(&daemon);
        http.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = json!({"domain": "shop", "attributes": {"user": "u"}}).to_string();
        http.write_all(&request_bytes("POST /v1/hit", &[], &body, "")).unwrap();
        http.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        http.read_to_end(&mut answer).unwrap();
        assert_eq!(Answer::read(&answer).expect("an answer").json()["verdict"], verdict);
    }
}

/// Requests and their bodies, the status and words of the error.
const FAULTS: &[(&str, &str, u16, &str)] = &[
    ("POST /v1/hit", "", 400, "a body is an object of JSON; help: "),
    ("POST /v1/hit", "{", 400, "EOF while parsing an object"),
    ("POST /v1/hit", r#" ["d"]"#, 400, "a body is an object of JSON; help: "),
    ("POST /v1/hit", "{}", 400, "missing field `domain`"),
    ("POST /v1/hit", r#"{"attribute": {}}"#, 400, "unknown field `attribute`, expected one of `domain`"),
    ("POST /v1/hit", r#"{"attributes": {}, "attributes": {}}"#, 400, "duplicate field `attributes`"),
    ("POST /v1/hit", r#"{"domain": 7}"#, 400, "invalid type: integer `7`, expected a string"),
    ("POST /v1/hit", r#"{"domain": "a/b"}"#, 400, "domain"),
    ("POST /v1/hit", r#"{"domain": ""}"#, 400, "domain"),
    ("POST /v1/hit", r#"{"domain": "d", "attributes": {"a:b": "v"}}"#, 400, "descriptors"),
    ("POST /v1/hit", r#"{"attributes": {"user": 7}}"#, 400, "invalid type: integer `7`, expected a string"),
    (
        "POST /v1/hit",
        r#"{"domain": "d", "attributes": {"a": "v"}, "descriptors": [[["a", "v"]]]}"#,
        400,
        "only one of them",
    ),
    ("POST /v1/hit", r#"{"domain": "d", "cost": -1}"#, 400, "a cost is a whole number of 0 or more"),
    ("POST /v1/hit", r#"{"domain": "d", "cost": 1.5}"#, 400, "a cost is a whole number"),
    ("POST /v1/hit", r#"{"domain": "d", "cost": {"a/b": 1}}"#, 400, "cost"),
    ("POST /v1/hit", r#"{"domain": "d", "cost": {"tokens": "1"}}"#, 400, "a cost is a whole number"),
    ("POST /v1/hit", r#"{"domain": "d", "queued": -1}"#, 400, "`queued` is a number of seconds"),
    ("POST /v1/charge", r#"{"domain": "d", "amount": "1"}"#, 400, "an amount is a whole number"),
    ("POST /v1/charge", r#"{"of": "a"}"#, 400, "unknown variant `a`, expected `idem` or `lease`"),
    ("POST /v1/release", r#"{"lease": "x"}"#, 400, "`lease` is the text of digits"),
    ("POST /v1/release", r#"{"lease": "7", "outcome": "fine"}"#, 400, "unknown variant `fine`"),
    ("GET /v1/hit", "", 405, "this path takes POST"),
    ("PUT /v1/auth", "", 405, "this path takes GET, POST"),
    ("GET /v1/auth", "", 404, "no `adapters.http.auth`"),
    ("GET /metrics", "", 404, "no such path; help: /v1/hit, "),
];

#[test]
fn names_the_fault_of_a_request() {
    let daemon = with_http("");
    let pairs: Vec<_> = (0..17).map(|number| json!([number.to_string(), "v"])).collect();
    let pairs = json!({"domain": "d", "descriptors": [pairs]}).to_string();
    let units: serde_json::Map<_, _> = (0..65).map(|unit| (unit.to_string(), 1.into())).collect();
    let units = json!({"domain": "d", "cost": units}).to_string();
    let long = json!({"domain": "x".repeat(600_000)}).to_string();
    let large = [
        ("POST /v1/hit", &*pairs, 400, "at most 8 descriptors of at most 16"),
        ("POST /v1/hit", &*units, 400, "an object has at most 64 names"),
        ("POST /v1/hit", &*long, 413, "at most 524288 bytes"),
    ];
    let table = [FAULTS, &large].concat();
    for (request, body, status, words) in &table {
        let answer = send(&daemon, request, SESSION, body);
        let is_named = answer.error().contains(words);
        assert!(answer.status == *status && is_named, "{request} {body:.80}: {answer:?}");
    }
    for op in ["acquire", "release"] {
        let answer = post(&daemon, &format!("/v1/{op}"), &[], &json!({"domain": "shop"}));
        has(&answer.error(), &["needs the header Tidegate-Session; help: "]);
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    let long = format!("tidegate-session: {}", "x".repeat(129));
    assert_eq!(post(&daemon, "/v1/hit", &[&long], &json!({"domain": "shop"})).status, 400);
    // A good request of the largest values is shortened as by every client.
    for descriptors in 1..=8 {
        let pairs: Vec<_> = (0..16).map(|_| json!(["key", "ä".repeat(1_900)])).collect();
        let body = json!({"domain": "shop", "descriptors": vec![pairs; descriptors]});
        assert_eq!(post(&daemon, "/v1/hit", &[], &body).json()["degraded"], false, "{descriptors}");
    }
    assert_eq!(
        post(&daemon, "/v1/hit", &[], &json!({"domain": "shop", "descriptors": vec![[["key", "value"]]; 9]}))
            .status,
        400
    );
    let rejected = crate::http::metric(&daemon, "tidegate_http_answers_total{answer=\"rejected\"}");
    let faults = table.len() + 4;
    assert_eq!(rejected, Some(faults as f64));
    // The log has the place, and no value.
    daemon.await_log(&[
        "WARN",
        "a request by HTTP was not judged, and passes unless",
        ": expected a string at line 1",
    ]);
    assert!(!daemon.log().contains("`7`"), "{}", daemon.log());
    has(&daemon.run("status"), &[&format!("not judged by HTTP: {faults} requests; they pass unless")]);
}

#[test]
fn serves_its_openapi_document() {
    let daemon = with_http("");
    let document = send(&daemon, "GET /v1/openapi.json", &[], "").json();
    let schemas = &document["components"]["schemas"];
    for path in ["hit", "acquire", "release", "peek", "charge", "auth"] {
        assert!(document["paths"][format!("/v1/{path}")].is_object(), "{path}");
    }
    // Every reference leads somewhere, and every field of an answer is described.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
    let decision = post(&daemon, "/v1/peek", &[], &json!({"domain": "shop"})).json();
    let described: Vec<_> = schemas["HttpDecision"]["properties"].as_object().unwrap().keys().collect();
    assert_eq!(described, Vec::from_iter(decision.as_object().unwrap().keys()));
}

/// Without an answer in time, the request is allowed, and the connection goes on.
#[test]
#[cfg(debug_assertions)]
fn allows_degraded_when_the_decision_is_late() {
    let daemon = start(Plan::new(), "auth: {domain: shop, attributes: {debug-stall: X-Stall}}");
    let mut http = connect(&daemon);
    let stall = json!({"domain": "shop", "attributes": {"user": "u1", "debug-stall": "200"}}).to_string();
    let late = exchange(&mut http, "POST /v1/hit", &[], &stall).json();
    let seen = ["allowed", "verdict", "degraded", "reason"].map(|field| &late[field]);
    assert_eq!(json!(seen), json!([true, "allow", true, "timeout"]), "{late}");
    let soon = json!({"domain": "shop", "attributes": {"user": "u1"}}).to_string();
    wait_until("the thread decides again", || {
        exchange(&mut http, "POST /v1/peek", &[], &soon).json()["degraded"] == false
    });
    let auth = exchange(&mut http, "GET /v1/auth", &["x-stall: 200"], "");
    assert_eq!((auth.status, auth.head.contains("\r\ntidegate-degraded: timeout")), (204, true), "{auth:?}");
    assert!(metric(&daemon, "tidegate_http_answers_total{answer=\"degraded\"}") >= Some(2.0));
}
