//! What goes back to who asked: a status, the kind of text, the text.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

/// One whole answer.
pub(super) type Answer = Response<Full<Bytes>>;

/// Text for people.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    of_kind(status, "text/plain; charset=utf-8", text)
}

/// One JSON value, with a line feed behind it for who reads it in a terminal.
pub(super) fn value(status: StatusCode, value: &Value) -> Answer {
    of_kind(status, "application/json", format!("{value}\n"))
}

/// What is wrong with the question: what, where and how to mend it.
pub(super) fn error(status: StatusCode, message: impl Into<String>) -> Answer {
    value(status, &json!({"error": message.into()}))
}

/// The path is there, but not for this.
pub(super) fn wrong_method(allowed: &'static str) -> Answer {
    let message = format!("this path is asked with {allowed}");
    let mut answer = error(StatusCode::METHOD_NOT_ALLOWED, message);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// Any other kind.
pub(super) fn of_kind(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // It is true now and no later.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
