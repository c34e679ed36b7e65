//! What may be a name: domain, priority, pool, unit, attribute key.

use super::NAME_BYTES_MAX;

/// Whether `text` is 1 to 64 bytes without control characters, `:` or `/`.
#[inline]
pub(super) fn is_name(text: &str) -> bool {
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return false;
    }
    let class = text.bytes().fold(PLAIN, |class, byte| class | class_of(byte));
    // Beyond ASCII there are control characters too: U+0080 to U+009F.
    class == PLAIN || (class == WIDE && !text.chars().any(char::is_control))
}

#[inline]
fn class_of(byte: u8) -> u8 {
    CLASSES.get(usize::from(byte)).copied().unwrap_or(FORBIDDEN)
}

/// The rule, as messages say it.
pub(super) const RANGE: &str = "a name: 1 to 64 bytes without control characters, ':' or '/'";

/// The rule where nil is allowed too.
pub(super) const NIL_RANGE: &str = "nil or a name: 1 to 64 bytes without control characters, ':' or '/'";

const PLAIN: u8 = 0;
const WIDE: u8 = 1;
const FORBIDDEN: u8 = 2;

/// A table, because names are read with every request.
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

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn names() {
        let longest = "x".repeat(64);
        for name in ["a", "api", "ip v6", "größe", "x-y_z.1", "user*", &longest] {
            assert!(is_name(name), "{name:?}");
        }
        let too_long = "x".repeat(65);
        for text in ["", "a:b", "a/b", "a\nb", "\0", "\u{7f}", "\u{85}", "é\u{9f}", &too_long] {
            assert!(!is_name(text), "{text:?}");
        }
    }
}
