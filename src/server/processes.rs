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
use crate::record::{EventOrigin, NotedKind, SESSION_BYTES};
use crate::sys;

/// The sessions whose process is watched.
#[derive(Debug)]
pub(super) struct Processes {
    /// The runtime of the watching tasks: not that of a decision thread, as many processes may exit at once.
    runtime: Handle,
    limits: ConnectionLimits,
    watched: Mutex<HashMap<SessionKey, WatchedSession>>,
    /// Logs the kernel's lack of process descriptors.
    lack: Once,
}

/// A session whose process is watched until this drops.
#[derive(Debug)]
struct WatchedSession {
    /// As its last connection opened it: after its end in the engine, another one may have the same name.
    session: Session,
    _task: AbortOnDropHandle<()>,
}

/// The identity of a session: a name, or the number of a connection without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) user: u32,
    name: Option<[u8; 16]>,
    /// Zero where there is a name.
    number: u64,
}

impl SessionKey {
    pub(super) fn new(name: Option<[u8; 16]>, user: u32, number: u64) -> SessionKey {
        SessionKey { user, name, number: if name.is_some() { 0 } else { number } }
    }

    /// Encodes the identity, unique among the sessions of its user. A name never equals the number of a connection.
    pub(super) fn to_bytes(self) -> [u8; SESSION_BYTES] {
        let mut encoded = [0; SESSION_BYTES];
        let number = self.number.to_le_bytes();
        let bytes = self.name.as_ref().map_or(&number[..], |name| name);
        let bytes = [u8::from(self.name.is_some())].into_iter().chain(bytes.iter().copied());
        encoded.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        encoded
    }

    /// Returns the origin of recorded events of this session.
    pub(super) fn origin(self, session: &Session) -> EventOrigin {
        EventOrigin { user: self.user, named: self.to_bytes(), session: session.clone() }
    }
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
        key: SessionKey,
        info: &ConnectionInfo,
        session: &Session,
        confirmed: bool,
    ) -> bool {
        let mut watched = self.watched.lock();
        if let Some(known) = watched.get_mut(&key) {
            known.session = session.clone();
            return true;
        }
        if !confirmed {
            return true;
        }
        let of_user = watched.keys().filter(|known| known.user == key.user).count();
        if watched.len() >= self.limits.max as usize || of_user >= self.limits.per_user as usize {
            drop(watched);
            warn!(
                user = key.user,
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
            shared.processes.end_session(&shared, &key);
        });
        let task = AbortOnDropHandle::new(task);
        watched.insert(key, WatchedSession { session: session.clone(), _task: task });
        true
    }

    /// Stops watching the process of a session that has ended, unless another one has taken its name meanwhile.
    pub(super) fn forget(&self, key: &SessionKey, engine: &Engine) {
        let mut watched = self.watched.lock();
        if watched.get(key).is_some_and(|watched| !engine.has_session(&watched.session)) {
            watched.remove(key);
        }
    }

    /// Stops watching the processes of all sessions that have ended, as after their grace period.
    pub(super) fn forget_ended(&self, engine: &Engine) {
        self.watched.lock().retain(|_, watched| engine.has_session(&watched.session));
    }

    /// Ends the session of a process that has exited, and closes its connections.
    fn end_session(&self, shared: &ServerState, key: &SessionKey) {
        let now = shared.clock.now();
        let session = self.watched.lock().get(key).map(|watched| watched.session.clone());
        // Before the entry is removed: a connection that joins meanwhile is still added to it, and closed below.
        if let Some(session) = &session {
            shared.engine.end_session(session, now);
            if shared.options.recorder.is_on() {
                shared.options.recorder.note(now.at, Some(key.origin(session)), NotedKind::SessionEnded);
            }
        }
        // Aborts the task that runs this, which awaits no more.
        let Some(watched) = self.watched.lock().remove(key) else { return };
        // No effect on the session that was ended above.
        shared.engine.end_session(&watched.session, now);
        shared.connections.shut_down_session(key);
    }
}
