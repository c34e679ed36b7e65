//! One rule as it is meant: a named limit, what it matches, what it counts by.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Condition, FleetTerms, KeyPart, Limit, Overrides, Scope};

/// A named limit. Names are unique within a domain.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name, 1 to 64 bytes; that of a descriptor's node may be longer.
    pub name: Box<str>,
    /// Where it is written.
    pub position: Position,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// What it counts by, in order; empty: one counter for all requests that match.
    pub key: Vec<KeyPart>,
    /// What it counts in; `None`: requests. A request that does not name its unit is not judged by it.
    pub unit: Option<Box<str>>,
    /// What it admits.
    pub limit: Limit,
    /// Limits of some keys alone.
    pub overrides: Option<Arc<Overrides>>,
    /// Whether its refusals are carried out.
    pub mode: Mode,
    /// Whether a request over it passes and is told so: a descriptor's `quota_mode`.
    pub is_quota: bool,
    /// The share of the limit, in thousandths, past which a grant is noted as near.
    pub warn_at: Option<u16>,
    /// How long work under it may take; set if it limits concurrency, and only then.
    pub expires: Option<Duration>,
    /// The end of the work that gives back what it was charged.
    pub refund_on: Option<RefundOn>,
    /// Whether response headers name it.
    pub advertise: bool,
    /// Shown to the caller that is refused.
    pub help: Option<Box<str>>,
    /// The attributes of its key whose text operators may see.
    pub show_keys: Vec<Box<str>>,
    /// What becomes of it when it refuses most callers right after a change.
    pub guard: Guard,
    /// How hosts share its budget; `None`: each host counts for itself.
    pub fleet: Option<FleetTerms>,
}

impl Rule {
    /// A rule that asks for nothing, counts all together, and enforces.
    #[must_use]
    pub fn new(name: &str, position: Position, limit: Limit) -> Rule {
        Rule {
            name: name.into(),
            position,
            conditions: Vec::new(),
            key: Vec::new(),
            unit: None,
            limit,
            overrides: None,
            mode: Mode::Enforce,
            is_quota: false,
            warn_at: None,
            expires: None,
            refund_on: None,
            advertise: true,
            help: None,
            show_keys: Vec::new(),
            guard: Guard::Tell,
            fleet: None,
        }
    }

    /// The candidate of this rule: a shadow rule for the same requests and keys under another limit.
    pub(super) fn candidate(&self, limit: Limit, position: Position) -> Rule {
        Rule {
            name: format!("{}{CANDIDATE}", self.name).into(),
            position,
            limit,
            mode: self.mode.max(Mode::Shadow),
            warn_at: None,
            advertise: false,
            help: None,
            guard: Guard::Tell,
            ..self.clone()
        }
    }

    /// Where it counts.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if self.fleet.is_some() { Scope::Fleet } else { Scope::Host }
    }
}

/// The name of the rule whose candidate has this name.
#[must_use]
pub fn candidate_of(name: &str) -> Option<&str> {
    name.strip_suffix(CANDIDATE)
}

/// The end of a candidate's name.
const CANDIDATE: &str = "@candidate";

/// Which end of a piece of work gives back what it was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundOn {
    /// It ended well: only failures count.
    Ok,
}

/// What becomes of a rule that refuses most callers right after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// It is told.
    #[default]
    Tell,
    /// It is told, and the rule is in shadow for a while.
    Shadow,
}

/// Whether refusals are carried out. Ordered from the strictest to the mildest.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
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
