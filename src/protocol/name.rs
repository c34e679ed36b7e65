//! Validates names: domain, priority, pool, unit, attribute key. Shortens values: the length of a value refuses no request.

use std::borrow::Cow;

use ascii::AsAsciiStr;
use ring::digest::{SHA256, digest};

use super::{NAME_BYTES_MAX, VALUE_BYTES_MAX};
use crate::terms::hex;

/// Returns the bytes as a text. Most are short ASCII, for which this check is cheaper than the general one.
#[inline]
pub(super) fn as_text(bytes: &[u8]) -> Option<&str> {
    match bytes.as_ascii_str() {
        Ok(text) => Some(text.as_str()),
        Err(_) => str::from_utf8(bytes).ok(),
    }
}

pub(crate) fn is_name(text: &str) -> bool {
    as_name(text.as_bytes()).is_some()
}

/// Returns the bytes as a name: 1 to 64 bytes without control characters, `:` or `/`.
#[inline]
pub(super) fn as_name(bytes: &[u8]) -> Option<&str> {
    let is_allowed = |letter: char| !letter.is_control() && letter != ':' && letter != '/';
    let is_short = (1..=NAME_BYTES_MAX).contains(&bytes.len());
    as_text(bytes).filter(|name| is_short && name.chars().all(is_allowed))
}

/// Shortens a value above [`VALUE_BYTES_MAX`] as every client does, so that all name the same key.
pub fn shorten_value(value: &str) -> Cow<'_, str> {
    shorten(value, VALUE_BYTES_MAX, VALUE_BYTES_KEPT)
}

/// Replaces the end of a text above the maximum by a tilde and the first 32 digits of a digest of the whole.
pub fn shorten(text: &str, max: usize, kept: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return text.into();
    }
    let start = text.get(..text.floor_char_boundary(kept)).unwrap_or_default();
    let digest = digest(&SHA256, text.as_bytes());
    format!("{start}~{}", hex(digest.as_ref().first_chunk::<16>().unwrap_or(&[0; 16]))).into()
}

/// The range of a name, for messages.
pub(super) const RANGE: &str = "a name: 1 to 64 bytes without control characters, ':' or '/'";

/// As in docs/protocol.md, "Input never means allow".
const VALUE_BYTES_KEPT: usize = 960;
