//! The daemon's process: failing accepts, threads that cannot start or that panic, crash loops.

use crate::{daemon, http, wire};
mod accept;
mod crash_loop;
mod soak;
mod starved;
mod threads;

/// The number of tries of a property that must always hold: from the environment, else `otherwise`.
pub(crate) fn tries(otherwise: usize) -> usize {
    std::env::var("STOPS").map_or(otherwise, |tries| tries.parse().unwrap())
}

/// The value of a daemon's metric; `None` if it has none.
pub(crate) fn metric(daemon: &daemon::Daemon, name: &str) -> Option<f64> {
    let metrics = http::get(daemon, "/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
