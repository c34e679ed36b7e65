//! What a rule asks of one attribute.

use super::Glob;

/// One attribute and the values it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The attribute's name.
    pub attribute: Box<str>,
    /// Any of these holds. An absent or empty attribute matches none of them.
    pub any_of: Vec<Pattern>,
    /// It also holds where the attribute is absent or empty: `{present: false}`.
    pub or_absent: bool,
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
