//! The limits of the process: on open files; and on core dumps, to keep data of callers out of them and away from other
//! processes of the same user.

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getpid, getrlimit, set_dumpable_behavior, setrlimit,
};
use tracing::warn;

use super::service_manager::ServiceManager;

/// Returns the most files that the daemon opens: per connection the socket and the process behind it.
pub(crate) fn open_files_needed(connections: u32) -> u64 {
    2 * u64::from(connections) + BESIDE
}

/// Raises the soft limit of open files to the need of the settings, at most to the hard limit.
pub(super) fn allow_open_files(connections: u32) {
    let needed = open_files_needed(connections);
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

/// Disables core dumps; in a service also access to the process memory. A daemon started by hand stays open
/// to its user's debugger, as it holds only data that this user may read.
pub(super) fn forbid_core_dumps() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let mut done = setrlimit(Resource::Core, none);
    // The kernel ignores the limit for cores that are piped to a program; only the dumpable flag stops those.
    let is_service = ServiceManager::is_there() || rustix::process::geteuid().is_root() || getpid().is_init();
    if is_service {
        done = done.and(set_dumpable_behavior(DumpableBehavior::NotDumpable));
    }
    if let Err(error) = done {
        warn!(%error, "a core dump of this daemon would contain data of callers: write LimitCORE=0 in its unit");
    }
}
