//! Who is connected: counted against the limits, and reached when the daemon drains.
//!
//! When all places are taken, idle connections of sessions that have many are ended before anyone is refused.

mod surplus;

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Shared;
use super::activity::Activity;
use super::processes::SessionKey;
use crate::clock::Timestamp;
use crate::engine::Account;

/// How many may be connected at once.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// By all users: descriptors are finite, and every connection costs a few kilobytes.
    pub max: usize,
    /// By one user: one application must not shut out the others.
    pub per_user: usize,
}

/// Everyone who is connected.
#[derive(Debug)]
pub(super) struct Connections {
    limits: ConnectionLimits,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    present: HashMap<u64, Present>,
    by_user: HashMap<u32, usize>,
    last: u64,
    draining: bool,
    /// The last search for surplus connections that found none, of one user or of all, and until when it is not repeated.
    searched: Option<(Option<u32>, Timestamp)>,
}

/// A connection.
#[derive(Debug)]
struct Present {
    stream: Weak<UnixStream>,
    user: u32,
    /// What HELLO named.
    session: Option<SessionKey>,
    activity: Arc<Activity>,
}

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Full,
    FullForUser,
    Draining,
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Connections {
        Connections { limits, book: Mutex::default() }
    }

    /// Lets a stream in. Its place is given back when the permit drops.
    pub(super) fn admit(
        shared: &Arc<Shared>,
        stream: &Arc<UnixStream>,
        user: u32,
    ) -> Result<Permit, Refusal> {
        let connections = &shared.connections;
        let mut book = connections.book();
        let mut ended = Vec::new();
        if book.refusal(connections.limits, user).is_some() && !book.draining {
            // A place of another user is of no use to a user that has all of its own.
            let of_user = book.is_full_for(connections.limits, user).then_some(user);
            ended = book.end_surplus(of_user, shared.clock.now().at);
        }
        let admitted = match book.refusal(connections.limits, user) {
            Some(refusal) => Err(refusal),
            None => Ok(book.add(stream, user)),
        };
        drop(book);
        surplus::say_goodbye(&ended);
        shared.telemetry.reclaimed(ended.len() as u64);
        let (number, activity) = admitted?;
        shared.telemetry.came();
        let account = shared.engine.account(user);
        account.connect();
        Ok(Permit { shared: Arc::clone(shared), number, user, activity, account })
    }

    /// Notes the session of a connection.
    pub(super) fn join(&self, number: u64, session: SessionKey) {
        if let Some(present) = self.book().present.get_mut(&number) {
            present.session = Some(session);
        }
    }

    /// Lets nobody in any more and ends what can still arrive: a peer's next write fails at once, what it wrote
    /// before is still there to be read and answered.
    pub(super) fn drain(&self) {
        let mut book = self.book();
        book.draining = true;
        for stream in book.present.values().filter_map(|present| present.stream.upgrade()) {
            // A peer that is already gone needs no telling.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    /// Ends what can still arrive from one: what it wrote before is answered.
    pub(super) fn hang_up(&self, number: u64) {
        let stream = self.book().present.get(&number).and_then(|present| present.stream.upgrade());
        if let Some(stream) = stream {
            // A peer that is already gone needs no telling.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.book().draining
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn refusal(&self, limits: ConnectionLimits, user: u32) -> Option<Refusal> {
        if self.draining {
            Some(Refusal::Draining)
        } else if self.present.len() >= limits.max {
            Some(Refusal::Full)
        } else if self.is_full_for(limits, user) {
            Some(Refusal::FullForUser)
        } else {
            None
        }
    }

    fn is_full_for(&self, limits: ConnectionLimits, user: u32) -> bool {
        self.by_user.get(&user).is_some_and(|of_user| *of_user >= limits.per_user)
    }

    fn add(&mut self, stream: &Arc<UnixStream>, user: u32) -> (u64, Arc<Activity>) {
        *self.by_user.entry(user).or_default() += 1;
        self.last += 1;
        let activity = Arc::<Activity>::default();
        let present =
            Present { stream: Arc::downgrade(stream), user, session: None, activity: Arc::clone(&activity) };
        self.present.insert(self.last, present);
        (self.last, activity)
    }

    /// Gives a place back. One that was taken away before is not given back twice.
    fn remove(&mut self, number: u64) -> Option<Present> {
        let present = self.present.remove(&number)?;
        if let Some(of_user) = self.by_user.get_mut(&present.user) {
            *of_user -= 1;
            if *of_user == 0 {
                self.by_user.remove(&present.user);
            }
        }
        Some(present)
    }
}

/// A place among the connections.
#[derive(Debug)]
pub(super) struct Permit {
    shared: Arc<Shared>,
    number: u64,
    user: u32,
    activity: Arc<Activity>,
    account: Arc<Account>,
}

impl Permit {
    /// The connection's number, no other's since the start.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The user at the other end.
    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Whether it works or rests.
    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.connections.book().remove(self.number);
        self.account.disconnect();
        self.shared.telemetry.went();
    }
}
