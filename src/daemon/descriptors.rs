//! How many files the daemon may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// How many files the daemon opens at most: for each connection one, and one for the process behind it.
pub(crate) fn needed(connections: u32) -> u64 {
    2 * u64::from(connections) + BESIDE
}

/// Raises the soft limit of open files to what the settings promise, as far as the hard one goes.
pub(super) fn allow(connections: u32) {
    let needed = needed(connections);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    let allowed = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum: limit.maximum });
    if raised.is_err() || allowed < needed {
        warn!(allowed, needed, "fewer files may be open than `connections.max` asks for: raise LimitNOFILE");
    }
}

/// Descriptors that are no connections of applications: runtimes, the listeners, the log, the watch over the rules and
/// reading them, operators.
const BESIDE: u64 = 96;
