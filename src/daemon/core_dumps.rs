//! Keeps what callers said out of core dumps, and out of reach of other processes of the same user.

use rustix::process::{DumpableBehavior, Resource, Rlimit, getpid, set_dumpable_behavior, setrlimit};
use tracing::warn;

use super::service_manager::ServiceManager;

/// Allows no core, and where the daemon runs as a service no look into its memory either. Who starts it by hand as
/// himself can look into it with a debugger still: it holds what he may know.
pub(super) fn forbid() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let mut done = setrlimit(Resource::Core, none);
    // A core that is piped to a program heeds no limit, but this.
    let is_service = ServiceManager::is_there() || rustix::process::geteuid().is_root() || getpid().is_init();
    if is_service {
        done = done.and(set_dumpable_behavior(DumpableBehavior::NotDumpable));
    }
    if let Err(error) = done {
        warn!(%error, "a core dump of this daemon would hold what callers sent: write LimitCORE=0 in its unit");
    }
}
