//! Watches the processes of sessions: when a process exits, its session ends, even if another process still holds its
//! sockets. No process is signalled.
//!
//! There is one descriptor for each session whose process the kernel confirms, not for each connection. Without it (an
//! older kernel, or too many processes) a session and its leases end five seconds after its last connection.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::{info, warn};

use super::ServerState;
use super::connections::ConnectionLimits;
use super::log_throttle::LogThrottle;
use super::membership::ConnectionInfo;
use crate::clock::Timestamp;
use crate::engine::Session;
use crate::record::{EventOrigin, NotedKind, SESSION_BYTES};
use crate::sys;

/// The sessions whose process is watched.
#[derive(Debug)]
pub(super) struct Processes {
    /// The runtime of the watching tasks: not that of a decision thread, as many processes may exit at once.
    runtime: Handle,
    limits: ConnectionLimits,
    table: Mutex<WatchTable>,
    too_many: LogThrottle,
}

#[derive(Debug, Default)]
struct WatchTable {
    watched: HashMap<SessionKey, WatchedSession>,
    by_user: HashMap<u32, usize>,
    /// Whether the kernel's lack of process descriptors was logged.
    lack_logged: bool,
}

/// A session whose process is watched.
#[derive(Debug)]
struct WatchedSession {
    /// Its connections by number. They are closed with it, as later requests would have no lease.
    connections: HashMap<u64, Session>,
    /// The session of the last connection, used when no connection is left.
    last: Session,
    /// When the last connection closed.
    left_at: Option<Timestamp>,
    left: Arc<Notify>,
}

/// The identity of a session: a name, or the number of a connection without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    user: u32,
    name: Option<[u8; 16]>,
    /// Zero where there is a name.
    number: u64,
}

impl SessionKey {
    pub(super) fn new(name: Option<[u8; 16]>, user: u32, number: u64) -> SessionKey {
        SessionKey { user, name, number: if name.is_some() { 0 } else { number } }
    }

    pub(super) fn user(&self) -> u32 {
        self.user
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

/// Why a process is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchError {
    /// It has exited.
    Exited,
    /// It cannot be watched: the session ends with its connections.
    Unable,
}

impl Processes {
    /// Makes a watcher on the current runtime. The connection limits also bound the number of watched processes.
    pub(super) fn new(limits: ConnectionLimits) -> Processes {
        Processes {
            runtime: Handle::current(),
            limits,
            table: Mutex::default(),
            too_many: LogThrottle::default(),
        }
    }

    /// Adds a connection of a session, and watches the process of the session if this is its first connection and the
    /// kernel has `confirmed` the process.
    pub(super) fn watch(
        &self,
        shared: &Arc<ServerState>,
        key: SessionKey,
        info: &ConnectionInfo,
        session: &Session,
        confirmed: bool,
    ) -> Result<(), WatchError> {
        let mut table = self.table.lock();
        if let Some(watched) = table.watched.get_mut(&key) {
            watched.connections.insert(info.number, session.clone());
            watched.last = session.clone();
            watched.left_at = None;
            return Ok(());
        }
        if !confirmed {
            return Err(WatchError::Unable);
        }
        if !table.has_room(key.user, self.limits) {
            drop(table);
            if let Some(sessions) = self.too_many.count_event(shared.clock.now().at) {
                warn!(
                    user = key.user,
                    sessions,
                    "more processes than `connections` allows connections: \
                     leases of further processes end with their connections"
                );
            }
            return Err(WatchError::Unable);
        }
        let process = match sys::peer_pidfd(&info.socket) {
            Ok(process) => process,
            Err(error) => {
                let (watch_error, is_first) = table.classify_error(&error);
                drop(table);
                if is_first {
                    info!(
                        %error,
                        "processes cannot be watched (this needs Linux 5.3): \
                         leases of a process that dies end with its connections"
                    );
                }
                return Err(watch_error);
            }
        };
        let left = Arc::new(Notify::new());
        let connections = HashMap::from([(info.number, session.clone())]);
        let watched =
            WatchedSession { connections, last: session.clone(), left_at: None, left: Arc::clone(&left) };
        table.watched.insert(key, watched);
        *table.by_user.entry(key.user).or_default() += 1;
        self.runtime.spawn(await_exit(Arc::clone(shared), key, process, left));
        Ok(())
    }

    pub(super) fn remove_connection(&self, key: &SessionKey, number: u64, now: Timestamp) {
        let mut table = self.table.lock();
        let Some(watched) = table.watched.get_mut(key) else { return };
        watched.connections.remove(&number);
        if watched.connections.is_empty() {
            watched.left_at = Some(now);
            watched.left.notify_one();
        }
    }

    /// Stops watching a session without connections, once its grace period is over.
    fn expire(&self, key: &SessionKey, now: Timestamp) -> GracePeriod {
        let mut table = self.table.lock();
        let Some(watched) = table.watched.get(key) else { return GracePeriod::Over };
        let Some(left_at) = watched.left_at else { return GracePeriod::Reconnected };
        let waited = now.since(left_at);
        if key.name.is_none() || waited >= GRACE_PERIOD {
            table.remove(key);
            return GracePeriod::Over;
        }
        GracePeriod::Remaining(GRACE_PERIOD.saturating_sub(waited))
    }

    /// Ends the session of a process that has exited, and closes its connections.
    fn end_session(&self, shared: &ServerState, key: &SessionKey) {
        let now = shared.clock.now();
        let last = self.table.lock().watched.get(key).map(|watched| watched.last.clone());
        // Before the entry is removed: a connection that joins meanwhile is still added to it, and closed below.
        if let Some(session) = &last {
            shared.engine.end_session(session, now);
            if shared.recorder.is_on() {
                shared.recorder.note(now.at, Some(key.origin(session)), NotedKind::Gone);
            }
        }
        let Some(watched) = self.table.lock().remove(key) else { return };
        for (number, session) in watched.connections {
            // No effect on the session that was ended above.
            shared.engine.end_session(&session, now);
            shared.connections.shut_down_reading(number);
        }
    }
}

impl WatchTable {
    fn has_room(&self, user: u32, limits: ConnectionLimits) -> bool {
        let of_user = self.by_user.get(&user).copied().unwrap_or_default();
        self.watched.len() < limits.max as usize && of_user < limits.per_user as usize
    }

    fn remove(&mut self, key: &SessionKey) -> Option<WatchedSession> {
        let watched = self.watched.remove(key)?;
        if let Entry::Occupied(mut of_user) = self.by_user.entry(key.user) {
            *of_user.get_mut() -= 1;
            if *of_user.get() == 0 {
                of_user.remove();
            }
        }
        Some(watched)
    }

    /// Classifies an error, and returns whether it must be logged: only the first one is.
    fn classify_error(&mut self, error: &io::Error) -> (WatchError, bool) {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return (WatchError::Exited, false);
        }
        (WatchError::Unable, !std::mem::replace(&mut self.lack_logged, true))
    }
}

/// The grace period of a session whose last connection has closed.
enum GracePeriod {
    /// A new connection has ended it.
    Reconnected,
    Remaining(Duration),
    /// It is over: the session is no longer watched.
    Over,
}

/// Waits until a process exits, or its session has ended before.
async fn await_exit(shared: Arc<ServerState>, key: SessionKey, process: OwnedFd, left: Arc<Notify>) {
    let processes = &shared.processes;
    let process = match sys::ProcessExit::new(process) {
        Ok(process) => process,
        Err(error) => {
            let mut table = processes.table.lock();
            table.classify_error(&error);
            table.remove(&key);
            return;
        }
    };
    let mut wait: Option<Duration> = None;
    loop {
        let again = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => left.notified().await,
            }
        };
        tokio::select! {
            biased;
            () = process.wait() => return processes.end_session(&shared, &key),
            () = again => {}
        }
        wait = match processes.expire(&key, shared.clock.now().at) {
            GracePeriod::Over => return,
            GracePeriod::Reconnected => None,
            GracePeriod::Remaining(wait) => Some(wait),
        };
    }
}

/// The time that the engine keeps a session without a connection.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
