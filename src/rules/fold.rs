//! Lower case by Unicode's simple mapping, one character for one, for `ignore_case` and `lowercase`. `ß` is
//! not `ss`, and no language is assumed: `İ` becomes `i`, and a `Σ` at the end of a word becomes `σ`.

use arrayvec::ArrayString;

/// Calls `use_it` with the text in lower case. Values that fit the wire protocol do not allocate.
#[inline]
pub(super) fn with_lowercase<R>(text: &str, use_it: impl FnOnce(&str) -> R) -> R {
    if text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return use_it(text);
    }
    let mut short = ArrayString::<LOWERED_BYTES_MAX>::new();
    if text.is_ascii() && short.try_push_str(text).is_ok() {
        short.make_ascii_lowercase();
        return use_it(&short);
    }
    short.clear();
    if text.chars().all(|character| short.try_push(lower(character)).is_ok()) {
        return use_it(&short);
    }
    use_it(&lowercase(text))
}

#[inline]
pub(super) fn push_lowercase(text: &str, to: &mut String) {
    if !text.is_ascii() {
        to.extend(text.chars().map(lower));
        return;
    }
    let start = to.len();
    to.push_str(text);
    if let Some(added) = to.get_mut(start..) {
        added.make_ascii_lowercase();
    }
}

pub(super) fn lowercase(text: &str) -> String {
    let mut lowered = String::with_capacity(text.len());
    push_lowercase(text, &mut lowered);
    lowered
}

fn lower(character: char) -> char {
    // Only `İ` has more than one character in lower case; the first one is its simple mapping.
    character.to_lowercase().next().unwrap_or(character)
}

/// The longest value on the wire has 1024 bytes; a character of two bytes can become one of three.
const LOWERED_BYTES_MAX: usize = 1_536;
