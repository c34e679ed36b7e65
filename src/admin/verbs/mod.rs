//! Verbs of operators: each has a path, takes a small JSON object and returns one.

pub(super) mod asked;
mod fleet;
mod key;
mod switch;

pub(crate) use fleet::{FleetKeyKind, FleetKeyStatus};
use hyper::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use crate::engine::SwitchOrigin;

/// Why a verb was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerbRefusal {
    /// HTTP status.
    pub(super) status: StatusCode,
    /// Message: the error, its location and a fix.
    pub(super) message: String,
}

impl VerbRefusal {
    /// Returns a refusal of an invalid request (400).
    pub(super) fn bad(message: impl Into<String>) -> VerbRefusal {
        VerbRefusal { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    /// Returns a refusal of a valid request that failed (409).
    pub(super) fn failed(message: impl Into<String>) -> VerbRefusal {
        VerbRefusal { status: StatusCode::CONFLICT, message: message.into() }
    }
}

/// Errors of the engine are those of the request (400).
impl<E: std::error::Error> From<E> for VerbRefusal {
    fn from(error: E) -> VerbRefusal {
        VerbRefusal::bad(error.to_string())
    }
}

/// Carries out a verb. It may block: it runs on its own thread. It returns a JSON object, to which
/// `"ok": true` is added.
pub(super) type Verb = fn(&AdminState, SwitchOrigin, &Value) -> Result<Value, VerbRefusal>;

/// Returns the verb of a path.
pub(super) fn find(path: &str) -> Option<Verb> {
    VERBS.iter().find(|(name, _)| *name == path).map(|(_, verb)| *verb)
}

/// Returns the paths of all verbs.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    VERBS.iter().map(|(path, _)| *path)
}

/// Carries out a verb with the body of a request: empty, or one JSON object.
pub(super) fn carry_out(
    verb: Verb,
    desk: &AdminState,
    by: SwitchOrigin,
    body: &[u8],
) -> Result<Value, VerbRefusal> {
    let mut done = verb(desk, by, &object(body)?)?;
    if let Some(fields) = done.as_object_mut() {
        fields.insert("ok".to_owned(), Value::Bool(true));
    }
    Ok(done)
}

/// Parses the body of a request: an empty one is an empty object.
pub(super) fn object(body: &[u8]) -> Result<Value, VerbRefusal> {
    let asked = if body.trim_ascii().is_empty() { Ok(json!({})) } else { serde_json::from_slice(body) };
    let asked = asked.map_err(|error| VerbRefusal::bad(format!("the request is not JSON: {error}")))?;
    if !asked.is_object() {
        return Err(VerbRefusal::bad("the request is not a JSON object: write {\"name\": value}"));
    }
    Ok(asked)
}

/// `POST /reload`: reloads the rules, as SIGHUP does, and returns the result.
fn reload(desk: &AdminState, _by: SwitchOrigin, _asked: &Value) -> Result<Value, VerbRefusal> {
    let reloaded = desk.control.reload().map_err(VerbRefusal::failed)?;
    if !reloaded.problems.is_empty() {
        return Err(VerbRefusal::failed(reloaded.problems.join("\n")));
    }
    Ok(json!({"changes": reloaded.changes}))
}

/// Every verb, by its path.
const VERBS: &[(&str, Verb)] = &[
    ("/reload", reload),
    ("/switch", switch::switch),
    ("/block", key::block),
    ("/unblock", key::unblock),
    ("/reset", key::reset),
    ("/fleet/key", fleet::key),
];
