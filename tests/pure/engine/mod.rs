//! Engine tests: admission by all rules or none, the rule that a reply names, the keys that tables keep.

use crate::{bench, engines};
mod admission;
mod callers;
mod fleet;
mod ledger;
mod model;
mod reload;
mod scenarios;
mod slots;
