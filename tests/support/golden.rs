//! Reads the golden frames of `tests/vectors/`.
#![allow(dead_code, reason = "each suite reads its own part")]

use serde::Deserialize;
use serde_json::Value;

/// A frame that must be decoded, and encoded if it is canonical.
#[derive(Deserialize)]
pub(crate) struct Good {
    pub(crate) name: String,
    pub(crate) direction: String,
    pub(crate) hex: String,
    pub(crate) meaning: Value,
    pub(crate) canonical: bool,
}

/// Bytes that must be rejected.
#[derive(Deserialize)]
pub(crate) struct Bad {
    pub(crate) name: String,
    pub(crate) hex: String,
    pub(crate) code: String,
    pub(crate) number: u8,
    pub(crate) closes: bool,
    pub(crate) after_hello: bool,
    pub(crate) id: Option<u64>,
    pub(crate) reply: bool,
}

pub(crate) fn good() -> Vec<Good> {
    serde_json::from_str(include_str!("../vectors/good.json")).unwrap()
}

pub(crate) fn bad() -> Vec<Bad> {
    serde_json::from_str(include_str!("../vectors/bad.json")).unwrap()
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}
