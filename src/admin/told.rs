//! Reading what a status tells, by pointers into it. What is not there is nothing: it may be of another version.

use serde_json::Value;

/// A count.
#[must_use]
pub fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// A word, or a few.
#[must_use]
pub fn word<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The entries of a list.
#[must_use]
pub fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
