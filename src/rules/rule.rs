//! One rule as it is meant: a named limit, what it matches, what it counts by.

use std::fmt;
use std::sync::Arc;

use super::Glob;
use crate::limit::token_bucket::Quota;

/// A named limit. Names are unique within a domain.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name, 1 to 64 bytes.
    pub name: Box<str>,
    /// Where it is written.
    pub position: Position,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// The attributes it counts by, in order; empty: one counter for all requests that match.
    pub key: Vec<Box<str>>,
    /// Its numbers.
    pub quota: Quota,
    /// Whether its refusals are carried out.
    pub mode: Mode,
    /// Shown to the caller that is refused.
    pub help: Option<Box<str>>,
}

/// One attribute and the values it may have.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The attribute's name.
    pub attribute: Box<str>,
    /// Any of these holds. Never empty.
    pub any_of: Vec<Pattern>,
}

/// What one value is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Equal, case and all.
    Exact(Box<str>),
    /// With `*` for any run of characters.
    Glob(Glob),
}

impl Pattern {
    /// Reads a value of `match`: `*` is any run of characters, `\*` a star.
    #[must_use]
    pub fn parse(text: &str) -> Pattern {
        let glob = Glob::parse(text);
        match glob.as_literal() {
            Some(literal) => Pattern::Exact(literal.into()),
            None => Pattern::Glob(glob),
        }
    }

    /// The text, when only equality is meant.
    #[must_use]
    pub fn as_exact(&self) -> Option<&str> {
        match self {
            Pattern::Exact(text) => Some(text),
            Pattern::Glob(_) => None,
        }
    }

    /// Whether the value is meant.
    #[must_use]
    pub fn holds(&self, value: &str) -> bool {
        match self {
            Pattern::Exact(text) => **text == *value,
            Pattern::Glob(glob) => glob.matches(value),
        }
    }
}

/// Whether refusals are carried out. Ordered from the strictest to the mildest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Refusals are refusals.
    #[default]
    Enforce,
    /// Judged and counted as if it enforced; the request passes and a note says what would have been.
    Shadow,
    /// Not judged at all.
    Disabled,
}

impl Mode {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Disabled => "disabled",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A place in a file. Line and column count from 1; a line of 0 means the file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}:{}", self.file, self.column),
        }
    }
}
