//! Verbs of operators: each has a path, takes a small JSON object and returns one.

pub(super) mod asked;
pub(super) mod fleet;
pub(super) mod key;
pub(super) mod switch;

pub(crate) use fleet::{FleetKeyKind, FleetKeyStatus};
use hyper::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use super::answer::{self, HttpAnswer};
use crate::engine::SwitchOrigin;

/// The answer of a verb, or why it was not carried out.
pub(super) type VerbResult = Result<HttpAnswer, VerbRefusal>;

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
pub(super) fn reload(admin: &AdminState, _by: SwitchOrigin, _asked: &Value) -> VerbResult {
    let reloaded = admin.control.reload().map_err(VerbRefusal::failed)?;
    if !reloaded.problems.is_empty() {
        return Err(VerbRefusal::failed(reloaded.problems.join("\n")));
    }
    Ok(answer::done(json!({"changes": reloaded.changes})))
}
