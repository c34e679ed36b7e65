//! Watches the processes of sessions: when a process exits, its session ends, even if another process still holds its
//! sockets. No process is signalled.
//!
//! There is one descriptor for each session whose process the kernel confirms, not for each connection. Without it (an
//! older kernel, or too many processes) a session and its leases end five seconds after its last connection.

use std::collections::HashMap;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::ServerState;
use super::connections::ConnectionLimits;
use super::membership::ConnectionInfo;
use crate::engine::{Engine, Session};
use crate::record::{EventOrigin, NotedKind};
use crate::sys;

/// The sessions whose process is watched.
#[derive(Debug)]
pub(super) struct Processes {
    /// The runtime of the watching tasks: not that of a decision thread, as many processes may exit at once.
    runtime: Handle,
    limits: ConnectionLimits,
    /// By the number of the session.
    watched: Mutex<HashMap<u64, WatchedSession>>,
    /// Logs the kernel's lack of process descriptors.
    lack: Once,
}

/// A session whose process is watched until this drops.
#[derive(Debug)]
struct WatchedSession {
    origin: EventOrigin,
    _task: AbortOnDropHandle<()>,
}

impl Processes {
    /// Makes a watcher on the current runtime. The connection limits also bound the number of watched processes.
    pub(super) fn new(limits: ConnectionLimits) -> Processes {
        Processes { runtime: Handle::current(), limits, watched: Mutex::default(), lack: Once::new() }
    }

    /// Watches the process of a session if the kernel has `confirmed` it, from the session's first connection on. If it cannot be
    /// watched, the session ends with its connections. Returns whether it may live: it is not known to have exited.
    pub(super) fn watch(
        &self,
        shared: &Arc<ServerState>,
        info: &ConnectionInfo,
        origin: &EventOrigin,
        confirmed: bool,
    ) -> bool {
        let mut watched = self.watched.lock();
        let number = origin.session.number();
        if !confirmed || watched.contains_key(&number) {
            return true;
        }
        let of_user = watched.values().filter(|known| known.origin.user == info.user).count();
        if watched.len() >= self.limits.max as usize || of_user >= self.limits.per_user as usize {
            drop(watched);
            warn!(
                user = info.user,
                "more processes than `connections` allows connections: \
                 leases of further processes end with their connections"
            );
            return true;
        }
        let process = {
            let _entered = self.runtime.enter();
            sys::peer_pidfd(&info.socket).and_then(sys::ProcessExit::new)
        };
        let process = match process {
            Ok(process) => process,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return false,
            Err(error) => {
                drop(watched);
                self.lack.call_once(|| {
                    info!(
                        %error,
                        "processes cannot be watched (this needs Linux 5.3): \
                         leases of a process that dies end with its connections"
                    );
                });
                return true;
            }
        };
        let shared = Arc::clone(shared);
        let task = self.runtime.spawn(async move {
            process.wait().await;
            shared.processes.end_session(&shared, number);
        });
        let task = AbortOnDropHandle::new(task);
        watched.insert(number, WatchedSession { origin: origin.clone(), _task: task });
        true
    }

    /// Stops watching the process of a session that has ended.
    pub(super) fn forget(&self, session: &Session) {
        self.watched.lock().remove(&session.number());
    }

    /// Stops watching the processes of all sessions that have ended, as after their grace period.
    pub(super) fn forget_ended(&self, engine: &Engine) {
        self.watched.lock().retain(|_, watched| engine.has_session(&watched.origin.session));
    }

    /// Ends the session of a process that has exited, and closes its connections.
    fn end_session(&self, shared: &ServerState, number: u64) {
        let now = shared.clock.now();
        let origin = self.watched.lock().get(&number).map(|watched| watched.origin.clone());
        let Some(origin) = origin else { return };
        shared.engine.end_session(&origin.session, now);
        if shared.options.recorder.is_on() {
            shared.options.recorder.note(now.at, Some(origin), NotedKind::SessionEnded);
        }
        shared.connections.shut_down_session(number);
        // Aborts the task that runs this, which awaits no more.
        self.watched.lock().remove(&number);
    }
}
