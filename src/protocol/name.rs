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
    if bytes.is_empty() || bytes.len() > NAME_BYTES_MAX {
        return None;
    }
    // Most names are lower-case letters only.
    if bytes.iter().all(u8::is_ascii_lowercase) {
        return as_text(bytes);
    }
    as_other_name(bytes)
}

#[inline(never)]
fn as_other_name(bytes: &[u8]) -> Option<&str> {
    let class = |byte: &u8| CLASSES.get(usize::from(*byte)).copied().unwrap_or(FORBIDDEN);
    match bytes.iter().fold(PLAIN, |all, byte| all | class(byte)) {
        PLAIN => as_text(bytes),
        // Control characters beyond ASCII: U+0080 to U+009F.
        WIDE => str::from_utf8(bytes).ok().filter(|name| !name.chars().any(char::is_control)),
        _ => None,
    }
}

/// Returns the attribute key if it is one of those that the clients' middlewares send with every request.
#[inline]
pub(super) fn common_key(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        b"user" => "user",
        b"path" => "path",
        b"method" => "method",
        b"ip" => "ip",
        b"route" => "route",
        _ => return None,
    })
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

const PLAIN: u8 = 0;
const WIDE: u8 = 1;
const FORBIDDEN: u8 = 2;

/// A table, because every request contains names.
static CLASSES: [u8; 256] = {
    let mut classes = [PLAIN; 256];
    let mut byte = 0u8;
    loop {
        #[allow(clippy::indexing_slicing, reason = "a u8 is below 256")]
        {
            classes[byte as usize] = match byte {
                0..=0x1f | 0x7f | b':' | b'/' => FORBIDDEN,
                0x80.. => WIDE,
                _ => PLAIN,
            };
        }
        if byte == u8::MAX {
            break classes;
        }
        byte += 1;
    }
};

/// As in docs/protocol.md, "Input never means allow".
const VALUE_BYTES_KEPT: usize = 960;
