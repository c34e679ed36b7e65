//! Builds HTTP responses: status, content type, body.

use std::convert::Infallible;
use std::path::Path;

use http_body_util::{Either, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio_stream::wrappers::ReceiverStream;

/// One answer: all of it at once, or lines as they come.
pub(crate) type HttpAnswer = Response<Either<Full<Bytes>, LineStream>>;

/// Lines until their sender closes.
pub(crate) type LineStream = StreamBody<ReceiverStream<LineFrame>>;

pub(crate) type LineFrame = Result<Frame<Bytes>, Infallible>;

pub(super) fn lines(lines: Receiver<LineFrame>) -> HttpAnswer {
    let lines = StreamBody::new(ReceiverStream::new(lines));
    of_body("application/jsonl", StatusCode::OK, Either::Right(lines))
}

pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> HttpAnswer {
    of_kind(status, "text/plain; charset=utf-8", text)
}

/// Returns one JSON value, with its keys in order, and a final line feed for terminals.
pub(super) fn value(status: StatusCode, value: &impl Serialize) -> HttpAnswer {
    let value = json!(value);
    of_kind(status, "application/json", format!("{value}\n"))
}

/// Returns the JSON object of a verb that was carried out, with `"ok": true`.
pub(super) fn done(mut done: Value) -> HttpAnswer {
    if let Some(fields) = done.as_object_mut() {
        fields.insert("ok".to_owned(), Value::Bool(true));
    }
    value(StatusCode::OK, &done)
}

/// Returns an error response; the message has the error, its location and a fix.
pub(super) fn error(status: StatusCode, message: impl Into<String>) -> HttpAnswer {
    value(status, &json!({"error": message.into()}))
}

/// The command means the daemon of another socket: which one this daemon serves.
pub(super) fn misdirected(serves: &Path) -> HttpAnswer {
    let serves = serves.display().to_string();
    let message = format!("this daemon serves {serves}");
    value(StatusCode::MISDIRECTED_REQUEST, &json!({"error": message, "serves": serves}))
}

/// The path is there, but not for this.
pub(super) fn wrong_method(allowed: &'static str) -> HttpAnswer {
    let message = format!("this path is asked with {allowed}");
    let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, message);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// Returns a page with its content security policy.
pub(super) fn html(page: String, policy: &str) -> HttpAnswer {
    safe(of_kind(StatusCode::OK, "text/html; charset=utf-8", page), policy)
}

/// Sets headers against scripts, sniffing and framing, unless the answer has a content security policy of its own.
pub(crate) fn safe(mut answer: HttpAnswer, policy: &str) -> HttpAnswer {
    let headers = answer.headers_mut();
    for (name, value) in SAFETY {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // The nonce in it consists of digits and letters.
    if let Ok(policy) = HeaderValue::from_str(policy) {
        headers.entry(CONTENT_SECURITY_POLICY).or_insert(policy);
    }
    answer
}

pub(crate) fn of_kind(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
    of_body(kind, status, Either::Left(Full::new(body.into())))
}

fn of_body(kind: &'static str, status: StatusCode, body: Either<Full<Bytes>, LineStream>) -> HttpAnswer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // It is true now and no later.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Further security headers: no content sniffing, no referrer, same-origin isolation.
const SAFETY: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];
