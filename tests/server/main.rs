//! The daemon at its socket: the real binary, raw bytes.
//!
//! Frames are written and read by a small codec of the tests' own, so that a mistake in the daemon's is seen.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says on which seed"
)]

mod abuse;
mod access;
mod acquire;
mod caps;
mod daemon;
mod fairness;
mod faults;
mod frames;
mod held;
mod hello;
mod judging;
mod leases;
mod log_limit;
mod msgpack;
mod ops;
mod path;
mod patience;
mod pools;
mod privacy;
mod refunds;
mod reload;
mod reload_load;
mod sessions;
mod sheds;
mod shell;
mod stop;
mod surplus;
mod wire;
mod work;
