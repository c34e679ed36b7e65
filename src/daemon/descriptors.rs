//! The limit on open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Returns the most files that the daemon opens: per connection the socket and the process behind it.
pub(crate) fn needed(connections: u32) -> u64 {
    2 * u64::from(connections) + BESIDE
}

/// Raises the soft limit of open files to the need of the settings, at most to the hard limit.
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

/// Descriptors besides connections: runtimes, listeners, log, inotify, rules files, admin connections.
const BESIDE: u64 = 96;
