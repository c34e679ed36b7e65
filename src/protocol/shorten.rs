//! Values that clients shorten: the length of a value refuses no request.

use std::borrow::Cow;

use ring::digest::{SHA256, digest};

use super::VALUE_BYTES_MAX;
use crate::terms::hex;

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

/// As in docs/protocol.md, "Input never means allow".
const VALUE_BYTES_KEPT: usize = 960;
