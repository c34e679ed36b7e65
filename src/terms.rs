//! TERMS: enums that the wire, the engine and the rules share, and counts in texts. This file names no room.

use std::borrow::Cow;
use std::fmt::Write;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// The decision about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[derive(strum::EnumCount, strum::EnumString, strum::FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
#[repr(u8)]
pub enum Verdict {
    /// Proceed.
    #[default]
    Allow = 0,
    /// Refuse: the caller exceeds a limit.
    Limit = 1,
    /// Refuse: the host or the fleet is full.
    Shed = 2,
    /// Proceed after the retry-after.
    Wait = 3,
    /// Refuse: the caller is on a deny list.
    Deny = 4,
}

impl Verdict {
    /// Returns the number on the wire.
    #[inline]
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The op of a check; its number is that on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum Op {
    /// Begins a request with an end (a lease): charged when allowed.
    Acquire = 1,
    /// Counts a request without an end: charged when allowed.
    Hit = 3,
    /// Judges without any change of state or counters.
    Peek = 4,
}

/// The kind of a note about a rule.
#[derive(strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoteKind {
    /// A rule in shadow mode would have refused.
    Shadow,
    /// A rule's shadow rule would have refused.
    #[strum(serialize = "candidate")]
    ShadowRule,
    /// A rule allowed the request above its quota.
    Over,
    /// The key of a rule is past its warning threshold.
    Near,
    /// A descriptor in quota mode exceeds its limit.
    Quota,
    /// Nothing limits the request. In place of a rule, the reason: `domain` or `rule`.
    Unmatched,
}

impl NoteKind {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The outcome of the work under a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[derive(strum::EnumString, strum::FromRepr, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
#[repr(u8)]
pub enum WorkOutcome {
    Ok = 0,
    /// It failed, or no outcome is given.
    #[default]
    Error = 1,
    /// It was dropped or timed out.
    Dropped = 2,
}

impl WorkOutcome {
    /// Returns the number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The reference to a grant or charge in a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundReference<'a> {
    /// Its idempotency key, 1 to 64 bytes.
    IdempotencyKey(&'a [u8]),
    /// Its lease.
    Lease(u64),
}

/// The enforcement of a rule, or of all rules of the daemon. Ordered from the strictest to the mildest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
pub enum Mode {
    /// Requests over the limit are refused.
    #[default]
    Enforce,
    /// Evaluated and counted as if enforced. Requests are allowed, and a note reports would-be refusals.
    Shadow,
    /// Not evaluated.
    Disabled,
}

impl Mode {
    pub const ALL: &[Mode] = Mode::VARIANTS;

    /// Returns the name in rules files and on the wire.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Whether a character hides on a screen: it ends a line, or turns the direction of the text around it, so that a name
/// with it looks like another one or like two lines.
pub fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Escapes the characters of a text that hide, other than those to keep, so that a caller's text cannot move the cursor. A
/// string of JSON keeps its value.
pub fn printable<'t>(text: &'t str, kept: &[char]) -> Cow<'t, str> {
    let hides = |character: &char| is_deceptive(*character) && !kept.contains(character);
    if !text.chars().any(|character| hides(&character)) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if hides(&character) {
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// The characters that lay out a text of several lines.
pub const LAYOUT: [char; 2] = ['\n', '\t'];

/// Formats a count in groups of three digits: `12 345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let grouped = digits.char_indices().map(|(index, digit)| match (digits.len() - index) % 3 {
        0 if index > 0 => format!(" {digit}"),
        _ => digit.to_string(),
    });
    grouped.collect()
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats a count with its noun, whose plural ends with `s`: `1 line`, `2 000 lines`.
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats an error of the system without its number: `No such file or directory`.
pub fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error ").map_or_else(|| text.clone(), |(words, _)| words.to_owned())
}
