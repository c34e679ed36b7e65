//! The processes behind sessions: when one has ended, so has its session, whoever still holds its sockets. Nobody is
//! signalled.
//!
//! One descriptor for each session whose process the kernel confirms, not for each connection. Without it, on an older
//! kernel or when there are too many, a session ends five seconds after its last connection, and its leases with it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::{info, warn};

use super::Shared;
use super::connections::ConnectionLimits;
use super::membership::Line;
use super::word::Word;
use crate::clock::Timestamp;
use crate::engine::Session;
use crate::record::SESSION_BYTES;
use crate::sys;

/// The sessions whose process is watched.
#[derive(Debug)]
pub(super) struct Processes {
    /// Where the watching is done: not on a decision thread, for many may end at once.
    runtime: Handle,
    limits: ConnectionLimits,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    watched: HashMap<SessionKey, Watched>,
    by_user: HashMap<u32, usize>,
    without_pidfds: bool,
    too_many: Word,
}

/// A session whose process is watched.
#[derive(Debug)]
struct Watched {
    /// Its connections by number. They are ended with it: what they ask for afterwards would have no lease.
    here: HashMap<u64, Session>,
    /// For when no connection is left.
    last: Session,
    left_at: Option<Timestamp>,
    left: Arc<Notify>,
}

/// Which session: one by name, or a connection that is its own.
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

    /// What it is called among those of its user: by name, or as a connection that is its own. Neither is ever taken for
    /// the other.
    pub(super) fn named(&self) -> [u8; SESSION_BYTES] {
        let mut named = [0; SESSION_BYTES];
        let number = self.number.to_le_bytes();
        let bytes = self.name.as_ref().map_or(&number[..], |name| name);
        let bytes = [u8::from(self.name.is_some())].into_iter().chain(bytes.iter().copied());
        named.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        named
    }
}

/// Why a process is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotWatched {
    /// It has ended.
    Ended,
    /// The session ends with its connections.
    Unable,
}

impl Processes {
    /// Watches on the current runtime, as many as may be connected.
    pub(super) fn new(limits: ConnectionLimits) -> Processes {
        Processes { runtime: Handle::current(), limits, book: Mutex::default() }
    }

    /// Notes a connection of a session whose process is watched, and has it watched if this is its first one. Only a
    /// process that is `confirmed` by the kernel is.
    pub(super) fn watch(
        &self,
        shared: &Arc<Shared>,
        key: SessionKey,
        line: &Line,
        session: &Session,
        confirmed: bool,
    ) -> Result<(), NotWatched> {
        let mut book = self.book();
        if let Some(watched) = book.watched.get_mut(&key) {
            watched.here.insert(line.number, session.clone());
            watched.last = session.clone();
            watched.left_at = None;
            return Ok(());
        }
        if !confirmed {
            return Err(NotWatched::Unable);
        }
        if !book.has_room(key.user, self.limits) {
            let due = book.too_many.is_due(shared.clock.now().at);
            drop(book);
            if let Some(sessions) = due {
                warn!(
                    user = key.user,
                    sessions,
                    "more processes than `connections` allows connections: \
                     the leases of one that dies end with its connections"
                );
            }
            return Err(NotWatched::Unable);
        }
        let process = match sys::peer_pidfd(&line.socket) {
            Ok(process) => process,
            Err(error) => {
                let (not_watched, is_first) = book.cannot_watch(&error);
                drop(book);
                if is_first {
                    info!(
                        %error,
                        "processes cannot be watched (that takes Linux 5.3): \
                         the leases of one that dies end with its connections"
                    );
                }
                return Err(not_watched);
            }
        };
        let left = Arc::new(Notify::new());
        let here = HashMap::from([(line.number, session.clone())]);
        let watched = Watched { here, last: session.clone(), left_at: None, left: Arc::clone(&left) };
        book.watched.insert(key, watched);
        *book.by_user.entry(key.user).or_default() += 1;
        self.runtime.spawn(await_end(Arc::clone(shared), key, process, left));
        Ok(())
    }

    /// A connection of a session has ended.
    pub(super) fn leave(&self, key: &SessionKey, number: u64, now: Timestamp) {
        let mut book = self.book();
        let Some(watched) = book.watched.get_mut(key) else { return };
        watched.here.remove(&number);
        if watched.here.is_empty() {
            watched.left_at = Some(now);
            watched.left.notify_one();
        }
    }

    /// Forgets a session that nobody came back to; how long to go on waiting, else.
    fn forget_left(&self, key: &SessionKey, now: Timestamp) -> Left {
        let mut book = self.book();
        let Some(watched) = book.watched.get(key) else { return Left::ForGood };
        let Some(left_at) = watched.left_at else { return Left::CameBack };
        let waited = now.since(left_at);
        if key.name.is_none() || waited >= GRACE {
            book.forget(key);
            return Left::ForGood;
        }
        Left::MayComeBack(GRACE.saturating_sub(waited))
    }

    /// Ends the session of a process that has ended, and its connections.
    fn end(&self, shared: &Shared, key: &SessionKey) {
        let now = shared.clock.now();
        let last = self.book().watched.get(key).map(|watched| watched.last.clone());
        // First of all: a connection that comes meanwhile is noted still, and ended below.
        if let Some(session) = &last {
            shared.engine.end(session, now);
            if shared.recorder.is_on() {
                shared.note_gone(key, session, now.at);
            }
        }
        let Some(watched) = self.book().forget(key) else { return };
        for (number, session) in watched.here {
            // Mostly the same one: then nothing is left to end.
            shared.engine.end(&session, now);
            shared.connections.hang_up(number);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn has_room(&self, user: u32, limits: ConnectionLimits) -> bool {
        let of_user = self.by_user.get(&user).copied().unwrap_or_default();
        self.watched.len() < limits.max && of_user < limits.per_user
    }

    fn forget(&mut self, key: &SessionKey) -> Option<Watched> {
        let watched = self.watched.remove(key)?;
        if let Entry::Occupied(mut of_user) = self.by_user.entry(key.user) {
            *of_user.get_mut() -= 1;
            if *of_user.get() == 0 {
                of_user.remove();
            }
        }
        Some(watched)
    }

    /// What follows from an error, and whether it is the first one to be logged.
    fn cannot_watch(&mut self, error: &io::Error) -> (NotWatched, bool) {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return (NotWatched::Ended, false);
        }
        (NotWatched::Unable, !std::mem::replace(&mut self.without_pidfds, true))
    }
}

/// What has become of a session whose last connection has ended.
enum Left {
    /// A connection has come.
    CameBack,
    MayComeBack(Duration),
    /// It is watched no more.
    ForGood,
}

/// Waits until a process has ended, or its session has without it.
async fn await_end(shared: Arc<Shared>, key: SessionKey, process: OwnedFd, left: Arc<Notify>) {
    let processes = &shared.processes;
    let process = match sys::ProcessExit::new(process) {
        Ok(process) => process,
        Err(error) => {
            let mut book = processes.book();
            book.cannot_watch(&error);
            book.forget(&key);
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
            () = process.wait() => return processes.end(&shared, &key),
            () = again => {}
        }
        wait = match processes.forget_left(&key, shared.clock.now().at) {
            Left::ForGood => return,
            Left::CameBack => None,
            Left::MayComeBack(wait) => Some(wait),
        };
    }
}

/// As long as the engine waits for a session without a connection.
const GRACE: Duration = Duration::from_secs(5);
