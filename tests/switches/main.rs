//! What operators say over the rules: switches, keys blocked by hand, the guard, in virtual time; and the daemon at its
//! sockets, with real files and real users.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

#[path = "../engine/bench.rs"]
#[allow(dead_code, reason = "the engine's own tests use the rest")]
mod bench;
#[path = "../support/mod.rs"]
mod support;

mod by_hand;
mod guard;
mod names;
mod switching;
