//! Requests in JSON: every verdict, every wrong body.

use std::io::{Read, Write};
use std::net::Shutdown;

use serde_json::{Value, json};

use super::{Answer, connect, exchange, post, request_bytes, send, start, with_http};
use crate::wire::{PATIENCE, hit, verdict_of};

const SESSION: &[&str] = &["tidegate-session: one"];

/// Ops and bodies in order, and fields of each decision.
fn verdicts() -> Vec<(&'static str, Value, Value)> {
    let user = json!({"domain": "shop", "attributes": {"user": "u1"}});
    let mail = json!({"domain": "shop", "attributes": {"mail": "m1"}});
    let job = json!({"domain": "shop", "attributes": {"job": "j1"}});
    let allow =
        json!({"allowed": true, "verdict": "allow", "status": 200, "degraded": false, "message": "Allowed."});
    vec![
        ("peek", user.clone(), allow.clone()),
        ("hit", user.clone(), json!({"verdict": "allow", "rule": "per-user", "limit": 2, "remaining": 1})),
        (
            "hit",
            user.clone(),
            json!({"verdict": "allow", "remaining": 0, "window": 7200.0, "retry_after": 0.0}),
        ),
        (
            "hit",
            user.clone(),
            json!({"verdict": "limit", "allowed": false, "status": 429, "remaining": 0, "lease": null}),
        ),
        ("peek", user, json!({"verdict": "limit", "help": "https://example.com/limits"})),
        (
            "hit",
            json!({"domain": "shop", "attributes": {"agent": "bot"}}),
            json!({"verdict": "deny", "status": 403, "rule": "bots"}),
        ),
        (
            "hit",
            json!({"domain": "shop", "queued": 0.6}),
            json!({"verdict": "shed", "status": 503, "rule": "default/queue_age"}),
        ),
        ("hit", json!({"domain": "shop", "queued": 0.6, "priority": "critical"}), allow.clone()),
        ("hit", mail.clone(), json!({"verdict": "allow", "wait": 0.0})),
        ("hit", mail, json!({"verdict": "wait", "allowed": true, "status": 200, "rule": "mails"})),
        (
            "hit",
            json!({"domain": "shop", "attributes": {"mail": "m1"}, "max_wait": 0}),
            json!({"verdict": "limit"}),
        ),
        (
            "acquire",
            job.clone(),
            json!({"verdict": "allow", "rule": "exports", "remaining": 0, "window": 0.0}),
        ),
        ("acquire", job, json!({"verdict": "limit", "rule": "exports", "lease": null})),
        (
            "hit",
            json!({"domain": "shop", "descriptors": [[["user", "u2"]], [["model", "m"]]], "cost": {"tokens": 7, "requests": 2}, "all": true}),
            json!({"verdict": "allow", "rule": "per-user"}),
        ),
        (
            "hit",
            json!({"domain": "shop", "attributes": {"user": "u3"}, "cost": 3}),
            json!({"verdict": "limit", "retry_after": null}),
        ),
        (
            "hit",
            json!({"domain": "nowhere"}),
            json!({"verdict": "allow", "notes": [["unmatched", "domain"]]}),
        ),
        (
            "hit",
            json!({"domain": "shop", "attributes": {"user": ""}}),
            json!({"verdict": "allow", "rule": null}),
        ),
        (
            "hit",
            json!({"domain": "shop", "attributes": {"user": null}}),
            json!({"verdict": "allow", "rule": null}),
        ),
    ]
}

#[test]
fn answers_every_verdict() {
    let daemon = with_http("");
    for (op, body, expected) in &verdicts() {
        let answer = post(&daemon, &format!("/v1/{op}"), SESSION, body);
        assert_eq!(answer.status, 200, "{op} {body}: {answer:?}");
        let decision = answer.json();
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(decision[field], *value, "{op} {body}: {field} of {decision}");
        }
        let retry = decision["headers"].get("Retry-After").is_some();
        let refused = decision["allowed"] == false && !decision["retry_after"].is_null();
        assert_eq!(retry, refused, "{decision}");
    }
    let limits =
        post(&daemon, "/v1/peek", &[], &json!({"domain": "shop", "attributes": {"user": "u2"}, "all": true}));
    let all = json!([{"rule": "per-user", "limit": 2, "remaining": 0, "window": 7200.0}]);
    for (field, value) in all[0].as_object().unwrap() {
        assert_eq!(limits.json()["all"][0][field], *value, "{limits:?}");
    }
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
    let status = daemon.run("status --json");
    assert!(status.contains("per-user"), "{status}");
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
    assert_eq!(of("/v1/hit", json!({"cost": {"tokens": 10}, "idem": "a"}))["remaining"], 90);
    assert_eq!(
        of("/v1/hit", json!({"cost": {"tokens": 10}, "idem": "a"}))["remaining"],
        90,
        "a retry of the session"
    );
    assert_eq!(of("/v1/charge", json!({"amount": {"tokens": 5}})), done(true));
    assert_eq!(remaining(), 85);
    let refund = json!({"amount": {"tokens": -4}, "of": {"idem": "a"}});
    assert_eq!([of("/v1/charge", refund.clone()), of("/v1/charge", refund)], [done(true), done(false)]);
    assert_eq!(remaining(), 89);
    let unnamed = post(
        &daemon,
        "/v1/charge",
        &[],
        &json!({"domain": "shop", "attributes": {"model": "m"}, "amount": {"tokens": -1}}),
    );
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
fn faults() -> Vec<(&'static str, String, u16, &'static str)> {
    let long = "x".repeat(600_000);
    let pairs: Vec<_> = (0..17).map(|number| json!([number.to_string(), "v"])).collect();
    let table: &[(&'static str, &str, u16, &'static str)] = &[
        ("POST /v1/hit", "", 400, "EOF while parsing"),
        ("POST /v1/hit", "{", 400, "EOF while parsing an object"),
        ("POST /v1/hit", "[1]", 400, "line 1 column"),
        ("POST /v1/hit", "{}", 400, "missing field `domain`"),
        (
            "POST /v1/hit",
            r#"{"domain": "shop", "attribute": {}}"#,
            400,
            "unknown field `attribute`, expected one of `domain`",
        ),
        (
            "POST /v1/hit",
            r#"{"domain": "shop", "attributes": {"user": "a"}, "attributes": {"user": "b"}}"#,
            400,
            "duplicate field `attributes`",
        ),
        ("POST /v1/hit", r#"{"domain": 7}"#, 400, "invalid type: integer `7`, expected a string"),
        ("POST /v1/hit", r#"{"domain": "a/b"}"#, 400, "domain"),
        ("POST /v1/hit", r#"{"domain": ""}"#, 400, "domain"),
        ("POST /v1/hit", r#"{"domain": "shop", "attributes": {"a:b": "v"}}"#, 400, "descriptors"),
        (
            "POST /v1/hit",
            r#"{"domain": "shop", "attributes": {"user": 7}}"#,
            400,
            "invalid type: integer `7`, expected a string",
        ),
        (
            "POST /v1/hit",
            r#"{"domain": "shop", "attributes": {"a": "v"}, "descriptors": [[["a", "v"]]]}"#,
            400,
            "only one of them",
        ),
        (
            "POST /v1/hit",
            &json!({"domain": "shop", "descriptors": [pairs]}).to_string(),
            400,
            "at most 8 descriptors of at most 16",
        ),
        ("POST /v1/hit", r#"{"domain": "shop", "cost": -1}"#, 400, "a cost is a whole number of 0 or more"),
        ("POST /v1/hit", r#"{"domain": "shop", "cost": 1.5}"#, 400, "a cost is a whole number"),
        ("POST /v1/hit", r#"{"domain": "shop", "cost": {"a/b": 1}}"#, 400, "cost"),
        ("POST /v1/hit", r#"{"domain": "shop", "cost": {"tokens": "1"}}"#, 400, "a cost is a whole number"),
        ("POST /v1/hit", &many_units(), 400, "an object has at most 64 names"),
        ("POST /v1/hit", r#"{"domain": "shop", "queued": -1}"#, 400, "`queued` is a number of seconds"),
        ("POST /v1/charge", r#"{"domain": "shop", "amount": "1"}"#, 400, "an amount is a whole number"),
        (
            "POST /v1/charge",
            r#"{"domain": "shop", "of": "a"}"#,
            400,
            "unknown variant `a`, expected `idem` or `lease`",
        ),
        ("POST /v1/release", r#"{"lease": "x"}"#, 400, "`lease` is the text of digits"),
        ("POST /v1/release", r#"{"lease": "7", "outcome": "fine"}"#, 400, "unknown variant `fine`"),
        ("POST /v1/hit", &json!({"domain": long}).to_string(), 413, "at most 524288 bytes"),
        ("GET /v1/hit", "", 405, "this path takes POST"),
        ("PUT /v1/auth", "", 405, "this path takes GET, POST"),
        ("GET /v1/auth", "", 404, "no `adapters.http.auth`"),
        ("GET /metrics", "", 404, "no such path; help: /v1/hit, "),
    ];
    table
        .iter()
        .map(|(request, body, status, words)| (*request, (*body).to_owned(), *status, *words))
        .collect()
}

fn many_units() -> String {
    let units: serde_json::Map<_, _> = (0..65).map(|unit| (unit.to_string(), 1.into())).collect();
    json!({"domain": "shop", "cost": units}).to_string()
}

#[test]
fn names_the_fault_of_a_request() {
    let daemon = with_http("");
    let table = faults();
    for (request, body, status, words) in &table {
        let answer = send(&daemon, request, SESSION, body);
        assert_eq!(
            (answer.status, answer.error().contains(words)),
            (*status, true),
            "{request} {body:.80}: {answer:?}"
        );
    }
    for op in ["acquire", "release"] {
        let answer = post(&daemon, &format!("/v1/{op}"), &[], &json!({"domain": "shop"}));
        assert_eq!(
            (answer.status, answer.error().contains("needs the header Tidegate-Session; help: ")),
            (400, true),
            "{answer:?}"
        );
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
    assert_eq!(rejected, Some(table.len() as f64 + 4.0));
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
    let daemon =
        start(crate::daemon::Plan::new(), "auth: {domain: shop, attributes: {debug-stall: X-Stall}}");
    let mut http = connect(&daemon);
    let stall = json!({"domain": "shop", "attributes": {"user": "u1", "debug-stall": "200"}}).to_string();
    let late = exchange(&mut http, "POST /v1/hit", &[], &stall).json();
    let expected = [json!(true), json!("allow"), json!(true), json!("timeout")];
    assert_eq!(
        ["allowed", "verdict", "degraded", "reason"].map(|field| late[field].clone()),
        expected,
        "{late}"
    );
    let soon = json!({"domain": "shop", "attributes": {"user": "u1"}}).to_string();
    crate::daemon::eventually("the thread decides again", || {
        (exchange(&mut http, "POST /v1/peek", &[], &soon).json()["degraded"] == false).then_some(())
    });
    let auth = exchange(&mut http, "GET /v1/auth", &["x-stall: 200"], "");
    assert_eq!((auth.status, auth.head.contains("\r\ntidegate-degraded: timeout")), (204, true), "{auth:?}");
    assert!(crate::http::metric(&daemon, "tidegate_http_answers_total{answer=\"degraded\"}") >= Some(2.0));
}
