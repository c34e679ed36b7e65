//! A compiled rule: name, conditions, key and limit.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Condition, FleetSettings, KeyPart, Limit, Mode, Overrides, Scope};

/// A rule, which is a named limit. Names are unique within a domain.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name, 1 to 64 bytes; longer for nodes of the descriptor tree.
    pub name: Box<str>,
    /// Its position in the files.
    pub position: Position,
    /// Conditions that must all match.
    pub conditions: Vec<Condition>,
    /// The key attributes, in order; empty for one state for all matching requests.
    pub key: Vec<KeyPart>,
    /// The unit; `None` for requests. The rule does not apply to requests without a cost in its unit.
    pub unit: Option<Box<str>>,
    /// The limit.
    pub limit: Limit,
    /// Limits of particular keys.
    pub overrides: Option<Arc<Overrides>>,
    /// The mode.
    pub mode: Mode,
    /// Whether requests over it are allowed and marked `quota`: a descriptor's `quota_mode`.
    pub is_quota: bool,
    /// The share of the limit, in thousandths, above which allowed requests are marked as near it.
    pub warn_at: Option<u16>,
    /// The time after which a lease expires; set if and only if the rule limits concurrency.
    pub expires: Option<Duration>,
    /// The outcome of a lease that refunds its cost.
    pub refund_on: Option<RefundOn>,
    /// Whether response headers name it.
    pub advertise: bool,
    /// Shown to refused callers.
    pub help: Option<Box<str>>,
    /// The key attributes whose values operators may see.
    pub show_keys: Vec<Box<str>>,
    /// The action if the rule refuses most callers soon after a change.
    pub guard: Guard,
    /// The fleet settings; `None` with `scope: host`.
    pub fleet: Option<FleetSettings>,
}

impl Rule {
    /// Makes an enforced rule without conditions and with one state for all requests.
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

    /// Makes the shadow rule of this rule: the same requests and keys, another limit.
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

    /// Returns the scope.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if self.fleet.is_some() { Scope::Fleet } else { Scope::Host }
    }
}

/// Returns the name of the rule that has a shadow rule of this name.
#[must_use]
pub fn candidate_of(name: &str) -> Option<&str> {
    name.strip_suffix(CANDIDATE)
}

/// The suffix of a shadow rule's name.
const CANDIDATE: &str = "@candidate";

/// The outcome of a lease that refunds its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum RefundOn {
    /// Success: only failures count.
    Ok,
}

/// The action if a rule refuses most callers soon after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Guard {
    /// A warning.
    #[default]
    Tell,
    /// A warning, and shadow mode for some time.
    Shadow,
}

/// A position in a file. Lines and columns count from 1; line 0 means the file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The path as given.
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
