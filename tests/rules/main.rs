//! The rules reader: what good files mean, what bad ones are told, directories, and files with a slip in them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod bad;
mod bad_files;
mod bad_quotas;
mod bad_sheds;
mod concurrency;
mod differences;
mod files;
mod fleet;
mod good;
mod library;
mod lists;
mod matching;
mod mutated;
#[path = "../support/problems.rs"]
mod problems;
mod quotas;
mod reference;
mod sheds;
mod tables;
mod warnings;
