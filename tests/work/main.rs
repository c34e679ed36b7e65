//! Work in progress, in virtual time: leases begin and end as they should, and what they hold goes back, each once.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that cannot go on fails"
)]

mod ends;
mod limits;
mod office;
mod pool_counts;
mod random;
mod repeats;
mod shedding;

#[path = "../support/mod.rs"]
mod support;
