//! What operators can tell the daemon: each verb a path, a small JSON object in and one out.

pub(super) mod asked;
mod fleet;
mod key;
mod reload;
mod switch;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::Desk;

/// Who tells it, as the kernel says: for the log of what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    /// The user.
    pub uid: u32,
    /// The process; none: it lives in another space of process numbers.
    pub pid: Option<u32>,
}

/// Why a verb was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whose fault it is, in the codes of HTTP.
    pub(super) status: StatusCode,
    /// What is wrong, where, and how to mend it.
    pub(super) message: String,
}

impl Refusal {
    /// What was asked for is wrong, and stays wrong.
    pub(super) fn bad(message: impl Into<String>) -> Refusal {
        Refusal { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// What was asked for was right, and could not be done.
    pub(super) fn failed(message: impl Into<String>) -> Refusal {
        Refusal { status: StatusCode::CONFLICT, message: message.into() }
    }
}

/// Carries one out. It may wait: it runs on a thread that does nothing else. What it returns is an object, to which
/// `"ok": true` is added.
pub(super) type Verb = fn(&Desk, By, &Value) -> Result<Value, Refusal>;

/// The verb of a path.
pub(super) fn find(path: &str) -> Option<Verb> {
    VERBS.iter().find(|(name, _)| *name == path).map(|(_, verb)| *verb)
}

/// Every path that there is a verb for.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    VERBS.iter().map(|(path, _)| *path)
}

/// Carries it out on the text of a request: nothing, or one JSON object.
pub(super) fn carry_out(verb: Verb, desk: &Desk, by: By, body: &[u8]) -> Result<Value, Refusal> {
    let mut done = verb(desk, by, &object(body)?)?;
    if let Some(fields) = done.as_object_mut() {
        fields.insert("ok".to_owned(), Value::Bool(true));
    }
    Ok(done)
}

/// What is asked: nothing, or one JSON object.
pub(super) fn object(body: &[u8]) -> Result<Value, Refusal> {
    let asked = if body.trim_ascii().is_empty() { Ok(json!({})) } else { serde_json::from_slice(body) };
    let asked = asked.map_err(|error| Refusal::bad(format!("the request is not JSON: {error}")))?;
    if !asked.is_object() {
        return Err(Refusal::bad("the request is not a JSON object: write {\"name\": value}"));
    }
    Ok(asked)
}

/// Every verb, by its path.
const VERBS: &[(&str, Verb)] = &[
    ("/reload", reload::reload),
    ("/switch", switch::switch),
    ("/block", key::block),
    ("/unblock", key::unblock),
    ("/reset", key::reset),
    ("/fleet/key", fleet::key),
];
