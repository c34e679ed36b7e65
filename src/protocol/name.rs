//! Validates names: domain, priority, pool, unit, attribute key.

use ascii::AsAsciiStr;

use super::NAME_BYTES_MAX;

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
