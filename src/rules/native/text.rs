//! What is written is YAML that the reader of rules reads back as it was meant.

use std::borrow::Cow;

/// A text, in quotes where it could be taken for anything else.
pub(super) fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "_-.".contains(character));
    let is_word = WORDS.contains(&text.to_ascii_lowercase().as_str());
    let is_harmless =
        |character: char| character == ' ' || character.is_ascii_graphic() || character.is_alphanumeric();
    if is_plain && !is_word {
        return text.to_owned();
    }
    if text.chars().all(is_harmless) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let escaped = |character: char| match character {
        '"' | '\\' => Cow::from(format!("\\{character}")),
        harmless if is_harmless(harmless) => Cow::from(harmless.to_string()),
        other => Cow::from(format!("\\U{:08X}", u32::from(other))),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

/// A list on one line.
pub(super) fn list(items: &[String]) -> String {
    format!("[{}]", items.join(", "))
}

/// Words behind `#`, on one line.
pub(super) fn comment(words: &str) -> String {
    let harmless = |character: char| if character.is_control() { '?' } else { character };
    format!("# {}", words.chars().map(harmless).collect::<String>())
}

/// What YAML, of this version or an older one, reads as something else than a text.
const WORDS: &[&str] = &["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"];

#[cfg(test)]
mod tests {
    use super::scalar;

    #[test]
    fn what_could_be_taken_for_something_else_is_in_quotes() {
        let table = [
            ("a_b-c.d", "a_b-c.d"),
            ("on", "'on'"),
            ("NULL", "'NULL'"),
            ("5", "'5'"),
            ("", "''"),
            ("it's", "'it''s'"),
            ("/files/*", "'/files/*'"),
            ("a: b # c", "'a: b # c'"),
            ("é", "'é'"),
            ("a\\b", "'a\\b'"),
            ("tab\t\"\\", "\"tab\\U00000009\\\"\\\\\""),
        ];
        for (text, written) in table {
            assert_eq!(scalar(text), written);
        }
    }
}
