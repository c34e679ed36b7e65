//! Conditions of a rule on attributes, as written. Requests are matched by their compiled form in `index`.

use std::fmt;

use super::{Glob, Network, fold};

/// One attribute and the values it may have.
#[derive(Clone, Debug, Eq)]
pub struct Condition {
    /// The attribute's name.
    pub attribute: Box<str>,
    /// Patterns of which one must match. An absent or empty attribute matches none.
    pub any_of: Vec<Pattern>,
    /// Whether an absent or empty attribute also matches: `{present: false}`.
    pub or_absent: bool,
    /// The line in the rule's file, 0 if unknown.
    pub line: u32,
}

/// A pattern for one value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Equal, case-sensitive.
    Exact(Box<str>),
    /// A glob: `*` matches any run of characters.
    Glob(Glob),
    /// A glob without regard to case, held in lower case.
    AnyCase(Glob),
    /// An address in this network, in any notation.
    Network(Network),
    /// None of these patterns. An absent attribute does not match.
    Not(Vec<Pattern>),
    /// Any value that is not empty.
    Present,
}

impl Condition {
    /// Makes a condition that requires the attribute to have one of these values.
    pub fn new(attribute: &str, any_of: Vec<Pattern>) -> Condition {
        Condition { attribute: attribute.into(), any_of, or_absent: false, line: 0 }
    }

    /// Whether the value matches; an empty value counts as absent.
    pub fn holds(&self, value: Option<&str>) -> bool {
        match value.filter(|value| !value.is_empty()) {
            Some(value) => self.any_of.iter().any(|pattern| pattern.holds(value)),
            None => self.or_absent,
        }
    }
}

/// The line is not compared: a rule that moved in its file is unchanged.
impl PartialEq for Condition {
    fn eq(&self, other: &Condition) -> bool {
        let Condition { attribute, any_of, or_absent, line: _ } = self;
        (attribute, any_of, *or_absent) == (&other.attribute, &other.any_of, other.or_absent)
    }
}

impl Pattern {
    /// Parses a value of `match`: `*` matches any run of characters, `\*` a star.
    pub fn parse(text: &str) -> Pattern {
        let glob = Glob::parse(text);
        match glob.as_literal() {
            Some(literal) => Pattern::Exact(literal.into()),
            None => Pattern::Glob(glob),
        }
    }

    /// Parses a value to be matched without regard to case.
    pub fn any_case(text: &str) -> Pattern {
        Pattern::AnyCase(Glob::parse(text).lowercase())
    }

    pub(crate) fn as_exact(&self) -> Option<&str> {
        match self {
            Pattern::Exact(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        match self {
            Pattern::Glob(glob) | Pattern::AnyCase(glob) => glob.is_any(),
            Pattern::Present => true,
            Pattern::Exact(_) | Pattern::Network(_) | Pattern::Not(_) => false,
        }
    }

    /// Whether the value, which is not empty, matches.
    pub(crate) fn holds(&self, value: &str) -> bool {
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

/// The form in rules files.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Exact(text) => f.write_str(&text.replace('*', "\\*")),
            Pattern::Glob(glob) => glob.fmt(f),
            Pattern::AnyCase(glob) => write!(f, "{{glob: {glob}, ignore_case: true}}"),
            Pattern::Network(network) => write!(f, "{{cidr: {network}}}"),
            Pattern::Not(patterns) => write!(f, "{{not: [{}]}}", joined(patterns)),
            Pattern::Present => f.write_str("{present: true}"),
        }
    }
}

/// The form in rules files.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let absent = if self.or_absent { "{present: false}" } else { "" };
        match (self.any_of.as_slice(), self.or_absent) {
            ([], true) => write!(f, "{}: {absent}", self.attribute),
            ([only], false) => write!(f, "{}: {only}", self.attribute),
            (values, true) => write!(f, "{}: [{}, {absent}]", self.attribute, joined(values)),
            (values, false) => write!(f, "{}: [{}]", self.attribute, joined(values)),
        }
    }
}

/// Formats conditions as they are written in a file.
pub fn conditions(conditions: &[Condition]) -> String {
    let mut written: Vec<_> = conditions.iter().map(Condition::to_string).collect();
    // All conditions must match, so their order has no meaning.
    written.sort_unstable();
    if written.is_empty() { String::new() } else { format!("{{{}}}", written.join(", ")) }
}

pub(super) fn joined(items: impl IntoIterator<Item: ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
