//! What operators say over the rules: switches, keys blocked by hand, the guard, in virtual time; and the daemon at its
//! sockets, with real files and real users.

use crate::{bench, daemon, engines, wire};
mod by_hand;
mod guard;
mod kept;
mod names;
mod office;
mod switching;
mod versions;
