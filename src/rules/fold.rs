//! Text in lower case, one character for one: what `ignore_case` and `lowercase` compare. It never changes what a
//! character is beyond its case, so `ß` is not `ss`.
//!
//! It is Unicode's simple mapping: no language is assumed, `İ` becomes `i`, and a `Σ` at the end of a word becomes
//! `σ` as everywhere else.

use arrayvec::ArrayString;

/// Hands the text on in lower case. Nothing is allocated for what the socket can carry.
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

/// Adds the text in lower case.
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

/// The text in lower case.
pub(super) fn lowercase(text: &str) -> String {
    let mut lowered = String::with_capacity(text.len());
    push_lowercase(text, &mut lowered);
    lowered
}

fn lower(character: char) -> char {
    // Only `İ` has more than one letter in lower case; the first is its simple one.
    character.to_lowercase().next().unwrap_or(character)
}

/// The longest value that the socket carries has 1 024 bytes; a character of two bytes can become one of three.
const LOWERED_BYTES_MAX: usize = 1_536;

#[cfg(test)]
mod tests {
    use super::{lower, lowercase, with_lowercase};

    #[test]
    fn every_way_to_lower_case_says_the_same() {
        let long = "ÀB".repeat(2_000);
        let table = [
            ("", ""),
            ("already lower é", "already lower é"),
            ("GPTBot/1.0", "gptbot/1.0"),
            ("ÉCOLE", "école"),
            ("İ", "i"),
            ("ΟΔΟΣ", "οδοσ"),
            ("\u{212a}", "k"), // the sign for kelvin
            ("ẞß", "ßß"),
            ("Ⱥ", "ⱥ"), // two bytes become three
            (&long, &"àb".repeat(2_000)),
        ];
        for (text, expected) in table {
            assert_eq!(lowercase(text), expected);
            assert_eq!(with_lowercase(text, str::to_owned), expected);
        }
    }

    #[test]
    fn a_character_grows_by_half_at_most_and_lowering_twice_is_lowering_once() {
        for character in char::MIN..=char::MAX {
            let lowered = lower(character);
            assert!(lowered.len_utf8() * 2 <= character.len_utf8() * 3, "{character:?}");
            assert_eq!(lower(lowered), lowered, "{character:?}");
        }
    }
}
