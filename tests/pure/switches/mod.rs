//! Operators' overrides in virtual time: switches, blocked keys, the guard.

use crate::{bench, engines};
mod fleet;
mod guard;
mod names;
mod switching;
