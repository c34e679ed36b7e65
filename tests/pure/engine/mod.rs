//! Who is admitted: all rules or none, in every interleaving; what a reply names; what the tables keep.

use crate::{bench, engines};
mod admission;
mod callers;
mod fleet;
mod lists;
mod model;
mod oversized;
mod permits;
mod refunds;
mod reload;
mod remote_checks;
mod repeats;
mod slots;
