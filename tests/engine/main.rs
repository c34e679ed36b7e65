//! Who is admitted: all rules or none, in every interleaving; what a reply names; what the tables keep.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod bench;
mod beyond;
mod blocks;
mod callers;
mod candidates;
mod charges;
mod counted;
mod fleet;
mod leaky;
mod lists;
mod model;
mod oversized;
mod places;
mod refunds;
mod reload;
mod repeats;
mod slots;
mod turn;
