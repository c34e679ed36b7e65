//! What is kept over a restart: files, the engine's tables, the daemon.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says on which seed or why it did not run"
)]

mod whole;
