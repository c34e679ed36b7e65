//! Tests load shedding in a closed loop: a host with workers, a backlog and impatient clients, in virtual
//! time. Claims hold for every seed; `SEEDS=20` runs as many as the documentation states, with longer overloads
//! and all cases, and each row writes its table to `target/tmp/shedding/`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "virtual nanoseconds of an hour and counts of a million fit into every number here"
)]

mod cases;
#[path = "../support/engines.rs"]
mod engines;
mod judge;
mod plan;
mod plant;
mod quota;
mod random;
mod real;
mod record;
mod rows;
