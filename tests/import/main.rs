//! `tidegate import ratelimit`: the rules that it makes decide what the tree decided, whatever the tree; what it writes and
//! what it says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod command;
mod property;
mod tree;
