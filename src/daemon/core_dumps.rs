//! Keeps data of callers out of core dumps and away from other processes of the same user.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getpid, set_dumpable_behavior, setrlimit};
use tracing::warn;

use super::service_manager::ServiceManager;

/// Disables core dumps; in a service also access to the process memory. A daemon started by hand stays open
/// to its user's debugger, as it holds only data that this user may read.
pub(super) fn forbid() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let mut done = setrlimit(Resource::Core, none);
    // The kernel ignores the limit for cores that are piped to a program; only the dumpable flag stops those.
    let is_service = ServiceManager::is_there() || rustix::process::geteuid().is_root() || getpid().is_init();
    if is_service {
        done = done.and(set_dumpable_behavior(DumpableBehavior::NotDumpable));
    }
    if let Err(error) = done {
        warn!(%error, "a core dump of this daemon would hold what callers sent: write LimitCORE=0 in its unit");
    }
}
