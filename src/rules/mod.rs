//! Rules: the file as written, the compiled rule, the index that finds the rules of a request, and the rule
//! set, which is swapped as a whole. This module knows nothing of the state of limits.

mod affixes;
pub(crate) mod amount;
mod condition;
mod contents;
mod csv;
pub(crate) mod de;
mod difference;
mod draft;
#[expect(dead_code, reason = "fields of types such as `Later` are looked up by name")]
mod file;
mod finder;
mod fleet;
mod fold;
mod glob;
mod hints;
mod index;
mod key;
mod library;
mod lints;
mod load;
mod meaning;
mod names;
pub(crate) mod near;
mod network;
pub(crate) mod open;
mod parts;
pub(crate) mod percent;
mod problem;
mod rate_text;
mod rows;
mod rule;
mod schema;
mod set;
#[doc(hidden)]
pub mod shed;
pub mod source;
mod tree;
pub(crate) mod values;
pub(crate) mod words;
pub mod yaml;

pub use condition::{Condition, Pattern, conditions};
pub use contents::{Fingerprint, OpenFiles};
pub use difference::{STARTS_FRESH, changes};
pub use fleet::{
    CellRate, FleetBound, FleetMode, FleetSettings, OnMiss, REMOTE_CHECK_WAIT_MAX_MILLIS, Region, Scope,
    Scopes, WholeNumbers,
};
pub use glob::Glob;
pub use index::{NamesSelection, Selection};
pub use key::{KeyPart, KeyScratch, Transform};
pub use library::{DomainTexts, Library, NotApplied, Reading};
pub use load::{Loaded, read, read_scoped, read_text};
pub use network::Network;
pub use problem::{Excerpt, Problem, Severity};
pub use rows::Rows;
pub use rule::{
    Allowance, Guard, Limit, ListKind, ListedEntry, OverTreatment, Overrides, Position, Priorities,
    Prioritize, RefundOn, RefusedCost, Rule, RuleField,
};
pub use set::{Domain, DomainContents, Mismatch, NamedItem, NamedKind};
pub use tree::{DESCRIPTORS_MAX, Hit, NodeHit, NodeHits, Tree};

/// The enforcement of a rule, re-exported for users of rules.
pub use crate::terms::Mode;

pub(crate) use contents::glance;
pub(crate) use load::read_with_text;
pub(crate) use names::RuleNames;
pub(crate) use problem::{ValueProblem, shown};
pub(crate) use rule::candidate_of;
pub use schema::schema;
pub(crate) use values::{NAME_BYTES_MAX, check_name};
