//! WHAT IS LIMITED: the file as written, the rule as meant, the index that finds the rules of a request, the rule
//! set swapped whole.
//!
//! Rules are held and matched here; that limits have state is not known here.

pub(crate) mod amount;
mod contents;
mod difference;
mod doubt;
mod draft;
pub mod fields;
mod glob;
mod index;
mod library;
mod load;
mod meaning;
mod names;
mod problem;
mod rate_text;
mod rule;
mod set;
pub mod source;
mod written;
pub mod yaml;

pub use contents::{Fingerprint, glance};
pub use difference::Difference;
pub use glob::Glob;
pub use index::Selection;
pub use library::{Halt, Library, Reading};
pub use load::{Loaded, read, read_text};
pub use problem::{Excerpt, Problem, Severity};
pub use rule::{Condition, Mode, Pattern, Position, Rule};
pub use set::{Domain, RuleSet};

pub(crate) use fields::check_name;
pub(crate) use meaning::MODES;
pub(crate) use problem::{Wrong, shown};
