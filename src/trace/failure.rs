//! Errors that stop a replay, with the line and a repair.

use std::io;

use super::access_line::UnreadableLine;
use crate::protocol;
use crate::rules::shown;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceFailure {
    #[error("line {number}: {wrong}")]
    Line { number: u64, wrong: TraceLineError },
    #[error("line {number}: {wrong}")]
    AccessLine { number: u64, wrong: UnreadableLine },
    #[error("line {number}: {source}")]
    Read { number: u64, source: io::Error },
    #[error("line {number}: something is wrong here, and its text is not shown: another user owns the trace")]
    Withheld { number: u64 },
    #[error("{0}")]
    Write(#[from] io::Error),
}

impl TraceFailure {
    /// Removes the text of the trace from the error, for traces that must not be quoted.
    pub(super) fn withheld(self) -> TraceFailure {
        match self {
            TraceFailure::Line { number, .. } | TraceFailure::AccessLine { number, .. } => {
                TraceFailure::Withheld { number }
            }
            other => other,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceLineError {
    #[error("not a line of a trace: {}", json_error(.0))]
    Json(serde_json::Error),
    #[error(transparent)]
    NotPlayed(super::player::NotPlayed),
    #[error("longer than {} KiB: is this a trace, one JSON object a line?", super::recording::LINE_BYTES_MAX >> 10)]
    TooLong,
    #[error("`t` is {}: write seconds from 0 as a decimal of at most 9 places, such as 0.25", shown(.0))]
    Time(String),
    #[error("`t` is {0}, before the line above: sort the trace by time")]
    Backwards(String),
    #[error("unknown op {}: write {OPS}", shown(.0))]
    UnknownOp(String),
    #[error("{op} needs `{field}`{}", example(field))]
    Missing { op: String, field: &'static str },
    #[error("id {} was used before", shown(.0))]
    IdTwice(String),
    #[error("a descriptor is a flat list of keys and values, at most 16 pairs in each of at most 8")]
    Descriptors,
    #[error("`{field}` must be {range}")]
    Field { field: &'static str, range: &'static str },
    #[error("{0}")]
    Bounds(protocol::Fault),
    #[error("{0}")]
    TooLarge(protocol::TooLarge),
}

/// Formats an error of serde_json without its line number, which is always 1 here.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(what) => format!("{what} (column {})", error.column()),
        None => text,
    }
}

/// An example of a missing field, where one helps.
fn example(field: &str) -> &'static str {
    match field {
        "descriptors" => ", such as [[\"user\", \"u1\"]]",
        "amount" => ", such as 3, -1 or {\"tokens\": 812}",
        "rules" => ", a directory or file beside the trace",
        "permille" => ", from 0 to 1000",
        _ => "",
    }
}

const OPS: &str = "hit, peek, acquire, release, renew, charge, signal, hello, bye or reload";
