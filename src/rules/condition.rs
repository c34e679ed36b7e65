//! What a rule asks of one attribute. Only said here, and judged one value at a time: a request is matched by what
//! is made of it in `matcher`.

use super::{Glob, Network, fold};

/// One attribute and the values it may have.
#[derive(Clone, Debug, Eq)]
pub struct Condition {
    /// The attribute's name.
    pub attribute: Box<str>,
    /// Any of these holds. An absent or empty attribute matches none of them.
    pub any_of: Vec<Pattern>,
    /// It also holds where the attribute is absent or empty: `{present: false}`.
    pub or_absent: bool,
    /// The line of its rule's file that it stands on; 0: unknown.
    pub line: u32,
}

/// What one value is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Equal, case and all.
    Exact(Box<str>),
    /// With `*` for any run of characters.
    Glob(Glob),
    /// The same for letters of either case; held in lower case.
    AnyCase(Glob),
    /// An address of this network, in whatever way it is written.
    Network(Network),
    /// None of these. It says nothing about an attribute that is absent.
    Not(Vec<Pattern>),
    /// Whatever it is, as long as there is one.
    Present,
}

impl Condition {
    /// An attribute that must be there and have one of these values.
    #[must_use]
    pub fn new(attribute: &str, any_of: Vec<Pattern>) -> Condition {
        Condition { attribute: attribute.into(), any_of, or_absent: false, line: 0 }
    }

    /// Whether it holds for the attribute's value; an empty one is absent.
    #[must_use]
    pub fn holds(&self, value: Option<&str>) -> bool {
        match value.filter(|value| !value.is_empty()) {
            Some(value) => self.any_of.iter().any(|pattern| pattern.holds(value)),
            None => self.or_absent,
        }
    }
}

/// Where it stands is no part of what it asks: a rule that moved in its file is the same rule.
impl PartialEq for Condition {
    fn eq(&self, other: &Condition) -> bool {
        let Condition { attribute, any_of, or_absent, line: _ } = self;
        (attribute, any_of, *or_absent) == (&other.attribute, &other.any_of, other.or_absent)
    }
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

    /// Reads a value of which the case is ignored.
    #[must_use]
    pub fn any_case(text: &str) -> Pattern {
        Pattern::AnyCase(Glob::parse(text).lowercase())
    }

    /// The text, when only equality is meant.
    #[must_use]
    pub fn as_exact(&self) -> Option<&str> {
        match self {
            Pattern::Exact(text) => Some(text),
            _ => None,
        }
    }

    /// Whether every value is meant.
    #[must_use]
    pub fn is_any(&self) -> bool {
        match self {
            Pattern::Glob(glob) | Pattern::AnyCase(glob) => glob.is_any(),
            Pattern::Present => true,
            Pattern::Exact(_) | Pattern::Network(_) | Pattern::Not(_) => false,
        }
    }

    /// Whether the value is meant, which is not empty.
    #[must_use]
    pub fn holds(&self, value: &str) -> bool {
        match self {
            Pattern::Exact(text) => **text == *value,
            Pattern::Glob(glob) => glob.matches(value),
            Pattern::AnyCase(glob) => fold::with_lowercase(value, |value| glob.matches(value)),
            Pattern::Network(network) => network.holds(value),
            Pattern::Not(patterns) => !patterns.iter().any(|pattern| pattern.holds(value)),
            Pattern::Present => true,
        }
    }
}
