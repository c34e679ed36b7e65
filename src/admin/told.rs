//! Reads fields of a status by JSON pointer. A missing field gives the default: the status may be of another version.

use serde_json::Value;

/// Returns a number; 0 if it is missing.
#[must_use]
pub fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// Returns a string; empty if it is missing.
#[must_use]
pub fn word<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the entries of a list; empty if it is missing.
#[must_use]
pub fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
