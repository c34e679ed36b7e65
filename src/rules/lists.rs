//! Entries of `exempt` and `deny`, which decide requests before any limit.

use super::{Condition, Mode, Position};

/// One entry. Names are unique among the entries and rules of a domain.
#[derive(Clone, Debug)]
pub struct ListedEntry {
    /// The name, 1 to 64 bytes.
    pub name: Box<str>,
    /// Its position in the files.
    pub position: Position,
    /// The result for a matching request.
    pub kind: ListKind,
    /// Conditions that must all match.
    pub conditions: Vec<Condition>,
    /// The mode. In shadow, an entry of `deny` refuses nothing, and one of `exempt` still exempts.
    pub mode: Mode,
    /// Shown to the denied caller.
    pub help: Option<Box<str>>,
}

/// The result for a matching request. Ordered by precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    /// Allowed without further checks.
    Exempt,
    /// Refused without further checks.
    Deny,
}

impl ListKind {
    /// Returns the name of the list in rules files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ListKind::Exempt => "exempt",
            ListKind::Deny => "deny",
        }
    }
}
