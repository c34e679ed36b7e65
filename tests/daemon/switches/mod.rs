//! Operators' overrides: switches, blocked keys and the guard in virtual time; and over real sockets.

use crate::{bench, daemon, engines, wire};
mod by_hand;
mod guard;
mod kept;
mod names;
mod office;
mod switching;
mod versions;
