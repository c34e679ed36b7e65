//! The process of the daemon: connections that cannot be accepted, threads that cannot be had or panic, crash loops.

use crate::{daemon, http, wire};
mod accept;
mod crash_loop;
mod soak;
mod starved;
mod threads;

/// How often something is tried that has to hold each time: as often as the environment says, else so often.
pub(crate) fn tries(otherwise: usize) -> usize {
    std::env::var("STOPS").map_or(otherwise, |tries| tries.parse().unwrap())
}

/// A value of the metrics of a daemon; none: it is not there.
pub(crate) fn metric(daemon: &daemon::Daemon, name: &str) -> Option<f64> {
    let metrics = http::get(daemon, "/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
