//! What operators say over the rules: switches, keys blocked by hand, the guard, in virtual time; and the daemon at its
//! sockets, with real files and real users.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

#[path = "../engine/bench.rs"]
#[allow(dead_code, reason = "the engine's own tests use the rest")]
mod bench;
#[path = "../server/daemon.rs"]
#[allow(dead_code, reason = "the tests of the server use the rest")]
mod daemon;
#[path = "../server/msgpack.rs"]
#[allow(dead_code, reason = "the tests of the server use the rest")]
mod msgpack;
#[path = "../support/mod.rs"]
mod support;
#[path = "../server/wire.rs"]
#[allow(dead_code, reason = "the tests of the server use the rest")]
mod wire;

mod by_hand;
mod guard;
mod kept;
mod names;
mod office;
mod switching;
mod versions;
