//! Tests one budget over many hosts in virtual time: real engines and sync, and a Redis in virtual time
//! that runs the scripts. A failure prints the plan and its seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    unreachable_pub,
    reason = "a test that cannot go on has failed, its numbers are small, and other tests share parts of it"
)]

mod csv;
#[path = "../support/engines.rs"]
mod engines;
mod faults;
mod host;
mod leases;
mod load;
mod many_keys;
mod measure;
mod network;
mod pending;
mod permits;
mod plan;
#[path = "../shedding/random.rs"]
mod random;
mod remote_checks;
mod reserve;
mod rules;
mod runs;
#[path = "../support/script_commands.rs"]
mod script_commands;
mod scripts;
mod store;
mod table;
mod users;
mod windows;
mod world;
