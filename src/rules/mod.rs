//! WHAT IS LIMITED: the rule as meant, the index that finds the rules of a request, the rule set swapped whole.
//!
//! Rules are held and matched here; that limits have state is not known here.

mod glob;
mod index;
mod rule;
mod set;

pub use glob::Glob;
pub use index::Selection;
pub use rule::{Condition, Mode, Pattern, Position, Rule};
pub use set::{Domain, RuleSet};
