//! Verbs of operators: each has a path, takes a small JSON object and returns one.

pub(super) mod key;
pub(super) mod switch;
pub(super) mod why;

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::AdminState;
use super::answer::{self, HttpAnswer};
use super::fleet::FleetReading;
use crate::adapters::shorten_value;
use crate::clock::{Now, Timestamp};
use crate::engine::{RuleName, SwitchOrigin};
use crate::terms::{counted, is_deceptive};
pub(crate) use key::{FleetKeyKind, FleetKeyStatus};
pub(crate) use why::{UnusedAttribute, WhyCheck, WhyStatus};

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

/// Attributes and their values.
type AttributePairs<'a> = Vec<(&'a str, &'a str)>;

/// The fields of one request.
#[derive(Clone, Copy, Debug)]
pub(in crate::admin) struct RequestFields<'a>(Option<&'a Map<String, Value>>);

impl<'a> RequestFields<'a> {
    /// Of an object that has these fields and no other.
    pub(in crate::admin) fn of(object: &'a Value, known: &[&str]) -> Result<RequestFields<'a>, VerbRefusal> {
        let fields = object.as_object();
        let mut names = fields.into_iter().flat_map(Map::keys);
        match names.find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => {
                let known = known.join("`, `");
                Err(VerbRefusal::bad(format!("unknown field `{}`: known are `{known}`", shown(unknown))))
            }
            None => Ok(RequestFields(fields)),
        }
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.and_then(|fields| fields.get(name)).filter(|value| !value.is_null())
    }

    pub(in crate::admin) fn text(&self, name: &str) -> Result<Option<&'a str>, VerbRefusal> {
        let text =
            |value: &'a Value| value.as_str().ok_or_else(|| VerbRefusal::bad(format!("`{name}` is a text")));
        self.get(name).map(text).transpose()
    }

    /// Returns a boolean field; a missing field is false.
    pub(in crate::admin) fn flag(&self, name: &str) -> Result<bool, VerbRefusal> {
        let flag = |value: &Value| {
            value.as_bool().ok_or_else(|| VerbRefusal::bad(format!("`{name}` is true or false")))
        };
        Ok(self.get(name).map(flag).transpose()?.unwrap_or(false))
    }

    /// The end of `for_s` from now on; `None`: it is not there.
    pub(in crate::admin) fn until(&self, now: Now) -> Result<Option<Timestamp>, VerbRefusal> {
        let Some(value) = self.get("for_s") else { return Ok(None) };
        let seconds = value.as_u64().filter(|seconds| (1..=FOR_S_MAX).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            VerbRefusal::bad(format!(
                "the time (--for, `for_s`) is in whole seconds, 1 to {FOR_S_MAX} (366 days)"
            ))
        })?;
        Ok(Some(now.at.after(Duration::from_secs(seconds))))
    }

    /// Returns a list of strings; a missing field is an empty list.
    pub(in crate::admin) fn texts(&self, name: &str) -> Result<Vec<&'a str>, VerbRefusal> {
        let wrong = || VerbRefusal::bad(format!("`{name}` is a list of texts: [\"method\"]"));
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        value.as_array().ok_or_else(wrong)?.iter().map(|text| text.as_str().ok_or_else(wrong)).collect()
    }

    /// Attributes: a list of pairs, in their order, or an object where that is free.
    fn pairs(&self, name: &str) -> Result<AttributePairs<'a>, VerbRefusal> {
        let wrong =
            || VerbRefusal::bad(format!("`{name}` is a list of pairs of texts: [[\"user\", \"u1\"]]"));
        let pair = |pair: &'a Value| match pair.as_array().map(Vec::as_slice) {
            Some([Value::String(key), Value::String(value)]) => Ok((key.as_str(), value.as_str())),
            _ => Err(wrong()),
        };
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(pairs)) => pairs.iter().map(pair).collect(),
            Some(Value::Object(pairs)) => {
                let pairs =
                    pairs.iter().map(|(key, value)| Ok((key.as_str(), value.as_str().ok_or_else(wrong)?)));
                pairs.collect()
            }
            Some(_) => Err(wrong()),
        }
    }
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

/// The rule of a name.
fn rule(admin: &AdminState, name: &str) -> Result<RuleName, VerbRefusal> {
    if name.len() > NAME_BYTES_MAX {
        return Err(VerbRefusal::bad(format!("`rule` has {} bytes: no name is so long", name.len())));
    }
    Ok(admin.engine.find_rule_name(name)?)
}

fn shown(text: &str) -> String {
    text.chars().filter(|letter| !is_deceptive(*letter)).take(SHOWN_MAX).collect()
}

/// Changes that last longer belong in the files.
pub(crate) const FOR_S_MAX: u64 = 366 * 86_400;

/// A domain's 64 bytes, a node's 255, and the separators.
const NAME_BYTES_MAX: usize = 512;

const SHOWN_MAX: usize = 64;
