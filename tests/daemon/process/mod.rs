//! The daemon's process: failing accepts, threads that cannot start or that panic, crash loops.

use crate::machine;
mod accept;
mod crash_loop;
mod soak;
mod starved;
mod threads;

/// The number of tries of a property that must always hold: from the environment, else `otherwise`.
pub(crate) fn tries(otherwise: usize) -> usize {
    std::env::var("STOPS").map_or(otherwise, |tries| tries.parse().unwrap())
}
