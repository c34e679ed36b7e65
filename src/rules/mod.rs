//! WHAT IS LIMITED: the file as written, the rule as meant, the index that finds the rules of a request, the rule
//! set swapped whole.
//!
//! Rules are held and matched here; that limits have state is not known here.

pub(crate) mod amount;
mod concurrency_fields;
mod condition;
mod contents;
mod csv;
mod descriptor_fields;
mod difference;
mod draft;
mod facts;
pub mod field;
pub mod fields;
mod finder;
mod fleet;
mod fleet_bound;
mod fold;
mod glob;
mod index;
mod key;
mod library;
mod limit;
mod lints;
mod lists;
mod load;
mod matcher;
mod meaning;
mod names;
mod network;
pub(crate) mod open;
mod overrides;
pub(crate) mod percent;
mod period;
mod plan;
mod pools;
mod prefixes;
mod priorities;
mod problem;
mod rate_text;
pub mod reference;
mod rows;
mod rule;
mod rule_fields;
mod set;
pub mod shed;
mod shed_facts;
mod shed_fields;
mod sight;
pub mod source;
mod texts;
mod tree;
pub(crate) mod words;
mod written;
pub mod yaml;

pub use condition::{Condition, Pattern};
pub use contents::{Fingerprint, glance};
pub use difference::Difference;
pub use facts::{Fact, conditions, facts};
pub(crate) use fleet::nearest_fleet_rate;
pub use fleet::{
    FleetMode, FleetTerms, OnMiss, OnRedisDown, Region, Scope, Scopes, Whole, fleet_counts, fleet_rate,
};
pub use fleet_bound::FleetBound;
pub use glob::Glob;
pub use key::{KeyPart, KeyScratch, Transform};
pub use library::{Halt, Library, Reading};
pub use limit::{Allowance, Limit, Over, Refused};
pub use lists::{ListKind, Listed};
pub use load::{Loaded, read, read_scoped, read_text, read_text_scoped, read_with_text};
pub use network::Network;
pub use overrides::Overrides;
pub use plan::Selection;
pub use priorities::{Priorities, Prioritize};
pub use problem::{Excerpt, Problem, Severity};
pub use rows::Rows;
pub use rule::{Guard, Mode, Position, RefundOn, Rule, candidate_of};
pub use set::{Contents, Domain, Kind, Named, NotItsKey, RuleSet, WhyNot};
pub use texts::Texts;
pub use tree::{DESCRIPTORS_MAX, Hit, NodeHit, NodeHits, Tree};

pub(crate) use fields::check_name;
pub(crate) use fleet::SCOPES;
pub(crate) use meaning::MODES;
pub(crate) use problem::{Wrong, shown};
