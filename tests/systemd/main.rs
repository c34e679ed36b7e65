//! The daemon as a service: the units, a socket that is passed, what a service manager is told, what it may and may not
//! see. Real tools of systemd where they are there; what is skipped says so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it skipped"
)]

mod activation;
#[allow(dead_code, reason = "the tests of the socket use the rest")]
#[path = "../server/daemon.rs"]
mod daemon;
mod doctor;
mod manager;
#[allow(dead_code, reason = "the tests of the socket use the rest")]
#[path = "../server/msgpack.rs"]
mod msgpack;
mod secrets;
mod telling;
mod tools;
mod two;
mod units;
#[allow(dead_code, reason = "the tests of the socket use the rest")]
#[path = "../server/wire.rs"]
mod wire;
