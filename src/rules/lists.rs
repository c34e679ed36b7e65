//! Entries of `exempt` and `deny`: requests that no limit judges.

use super::{Condition, Mode, Position};

/// One entry. Names are unique within a domain, those of rules included.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name, 1 to 64 bytes.
    pub name: Box<str>,
    /// Where it is written.
    pub position: Position,
    /// What becomes of a request that matches.
    pub kind: ListKind,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// Whether it speaks. In shadow an entry of `deny` refuses nobody, and one of `exempt` exempts all the same.
    pub mode: Mode,
    /// Shown to the caller that is denied.
    pub help: Option<Box<str>>,
}

/// What becomes of a request that matches. Ordered as they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    /// It passes, and nothing judges it.
    Exempt,
    /// It is refused, and nothing else judges it.
    Deny,
}

impl ListKind {
    /// As the list is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ListKind::Exempt => "exempt",
            ListKind::Deny => "deny",
        }
    }
}
