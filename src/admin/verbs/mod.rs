//! Verbs of operators: each has a path, takes a small JSON object and returns one.

pub(super) mod key;
pub(super) mod switch;
pub(super) mod why;

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use super::answer::{self, HttpAnswer};
use super::fleet::FleetReading;
use crate::adapters::shorten_value;
use crate::clock::{Now, Timestamp};
use crate::engine::{RuleName, SwitchOrigin};
use crate::terms::counted;
pub(crate) use key::{FleetKeyKind, FleetKeyStatus};
pub(crate) use why::{UnusedAttribute, WhyCheck, WhyStatus};

/// The answer of a verb, or why it was not carried out.
pub(super) type VerbResult = Result<HttpAnswer, VerbRefusal>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerbRefusal {
    pub(super) status: StatusCode,
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

/// Parses the body of a request: an empty one is an empty object. Values of attributes are shortened as clients do.
pub(super) fn object(body: &[u8]) -> Result<Value, VerbRefusal> {
    let object = if body.trim_ascii().is_empty() { Ok(json!({})) } else { serde_json::from_slice(body) };
    let mut object: Value =
        object.map_err(|error| VerbRefusal::bad(format!("the request is not JSON: {error}")))?;
    let Some(fields) = object.as_object_mut() else {
        return Err(VerbRefusal::bad("the request is not a JSON object: write {\"name\": value}"));
    };
    for name in ["key", "descriptors"] {
        fields.get_mut(name).into_iter().for_each(shorten_texts);
    }
    Ok(object)
}

fn shorten_texts(value: &mut Value) {
    match value {
        Value::String(text) => *text = shorten_value(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(shorten_texts),
        Value::Object(fields) => fields.values_mut().for_each(shorten_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `POST /reload`: reloads the rules, as SIGHUP does, and returns the result.
pub(super) fn reload(admin: &AdminState, _by: SwitchOrigin, _body: &Value) -> VerbResult {
    let reloaded = admin.control.reload().map_err(VerbRefusal::failed)?;
    if !reloaded.problems.is_empty() {
        return Err(VerbRefusal::failed(reloaded.problems.join("\n")));
    }
    Ok(answer::done(json!({"changes": reloaded.changes})))
}

pub(super) fn fields<'a, T: Deserialize<'a>>(body: &'a Value) -> Result<T, VerbRefusal> {
    T::deserialize(body).map_err(|error| VerbRefusal::bad(format!("the request cannot be read: {error}")))
}

/// Returns the end of `for_s` from now on; `None`: it is not there.
pub(super) fn until(for_s: Option<u64>, now: Now) -> Result<Option<Timestamp>, VerbRefusal> {
    if for_s.is_some_and(|seconds| !(1..=FOR_S_MAX).contains(&seconds)) {
        let message = format!("the time (--for, `for_s`) is in whole seconds, 1 to {FOR_S_MAX} (366 days)");
        return Err(VerbRefusal::bad(message));
    }
    Ok(for_s.map(|seconds| now.at.after(Duration::from_secs(seconds))))
}

/// Returns the end of `for_s`, which must be there.
pub(super) fn end(for_s: Option<u64>, now: Now) -> Result<Timestamp, VerbRefusal> {
    until(for_s, now)?.ok_or_else(|| VerbRefusal::bad("for how long: write `for_s`, in seconds"))
}

/// Stores switches and blocks. Returns the warning of a change: that it would be lost, or that it does not reach all hosts.
fn keep(admin: &AdminState, is_fleet: bool) -> Option<String> {
    let unlike = FleetReading::take(admin, admin.clock.now().at).view.unlike;
    let unreached = (is_fleet && unlike > 0).then(|| {
        let hosts = counted(unlike, "host");
        format!("{hosts} with another fleet secret, or an older version: this does not hold there")
    });
    let warnings: Vec<String> = unreached.into_iter().chain(admin.control.keep().err()).collect();
    (!warnings.is_empty()).then(|| warnings.join("; "))
}

fn rule(admin: &AdminState, name: &str) -> Result<RuleName, VerbRefusal> {
    if name.len() > NAME_BYTES_MAX {
        return Err(VerbRefusal::bad(format!("`rule` has {} bytes: no name is so long", name.len())));
    }
    Ok(admin.engine.find_rule_name(name)?)
}

/// Changes that last longer belong in the files.
pub(crate) const FOR_S_MAX: u64 = 366 * 86_400;

/// A domain's 64 bytes, a node's 255, and the separators.
const NAME_BYTES_MAX: usize = 512;
