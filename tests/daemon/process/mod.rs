//! The process of the daemon: a log that cannot be written, threads that cannot be had or panic, crash loops, the end.

use crate::{daemon, http, machine, msgpack, wire};
mod accept;
mod crash_loop;
mod log;
mod soak;
mod starved;
mod stops;
mod threads;

/// How often something is tried that has to hold each time: as often as the environment says, else so often.
fn tries(otherwise: usize) -> usize {
    std::env::var("STOPS").map_or(otherwise, |tries| tries.parse().unwrap())
}

/// A value of the metrics of a daemon; none: it is not there.
fn metric(daemon: &daemon::Daemon, name: &str) -> Option<f64> {
    let metrics = http::get(daemon, "/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}
