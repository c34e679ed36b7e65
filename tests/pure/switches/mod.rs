//! Operators' overrides in virtual time: switches, blocked keys, the guard.

use crate::bench;
mod fleet;
mod switching;
