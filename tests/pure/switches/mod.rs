//! Operators' overrides in virtual time: switches, blocked keys, the guard.

use crate::{bench, engines};
mod by_hand;
mod fleet;
mod guard;
mod names;
mod switching;
