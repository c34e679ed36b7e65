//! The process: its limits on open files, and on core dumps, to keep data of callers out of them and away from other processes of
//! the same user; the socket that a service manager passes; and its signals.

use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getpid, getrlimit, set_dumpable_behavior, setrlimit,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::service_manager::ServiceManager;
use super::watch::ReloadSignal;
use crate::admin::{AdminState, log_status};
use crate::server::Listener;
use crate::sys::{self, PassedDescriptor};

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

/// Returns the passed socket, ready to listen; `None`: none was passed, so the daemon makes its own.
pub(super) fn passed_listener() -> Result<Option<Listener>, String> {
    let passed = sys::take_passed_descriptors().map_err(|error| {
        format!("the descriptors that were passed cannot be taken: {error}: LISTEN_FDS and LISTEN_FDNAMES must agree")
    })?;
    let Some(PassedDescriptor { name, descriptor }) = choose(passed)? else { return Ok(None) };
    let unusable = |why| format!("the socket `{name}` was passed and cannot be used: {why}");
    Listener::from_passed(descriptor).map(Some).map_err(unusable)
}

/// Selects the descriptor with our name, or the only one under any name.
fn choose(mut named: Vec<PassedDescriptor>) -> Result<Option<PassedDescriptor>, String> {
    if named.iter().filter(|passed| passed.name == NAME).count() == 1 {
        named.retain(|passed| passed.name == NAME);
    }
    if named.len() > 1 {
        let names = named.iter().map(|passed| passed.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "{} sockets were passed ({names}) and one is needed: write FileDescriptorName={NAME} in its unit, or pass no other",
            named.len()
        ));
    }
    Ok(named.pop())
}

/// The name in the packaged unit.
const NAME: &str = "clients";

/// TERM and INT drain; a second one exits at once from the signal handler, without waiting for any thread,
/// even one that writes the tables; the same one within a moment counts once. HUP reloads the rules, USR1 writes the status to the
/// log.
pub(super) fn watch_signals(
    shutdown: &CancellationToken,
    rules: ReloadSignal,
    state: AdminState,
) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (mut hang_up, mut status) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined1())?);
    sys::exit_at_second_signal(&[libc::SIGTERM, libc::SIGINT], EXIT_UNDRAINED)?;
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {
                    rules.request();
                    continue;
                }
                _ = status.recv() => {
                    log_status(&state);
                    continue;
                }
            }
            info!("draining");
            shutdown.cancel();
        }
    });
    Ok(())
}

/// Exited before all replies were sent.
const EXIT_UNDRAINED: i32 = 1;
