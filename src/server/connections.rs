//! Who is connected: counted against the limits, and reached when the daemon drains.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Shared;

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
    streams: HashMap<u64, Weak<UnixStream>>,
    by_user: HashMap<u32, usize>,
    last: u64,
    draining: bool,
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
        if book.draining {
            return Err(Refusal::Draining);
        }
        if book.streams.len() >= connections.limits.max {
            return Err(Refusal::Full);
        }
        let of_user = book.by_user.entry(user).or_default();
        if *of_user >= connections.limits.per_user {
            return Err(Refusal::FullForUser);
        }
        *of_user += 1;
        book.last += 1;
        let number = book.last;
        book.streams.insert(number, Arc::downgrade(stream));
        shared.telemetry.came();
        Ok(Permit { shared: Arc::clone(shared), number, user })
    }

    /// Lets nobody in any more and ends what can still arrive: a peer's next write fails at once, what it wrote
    /// before is still there to be read and answered.
    pub(super) fn drain(&self) {
        let mut book = self.book();
        book.draining = true;
        for stream in book.streams.values().filter_map(Weak::upgrade) {
            // A peer that is already gone needs no telling.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    /// Ends what can still arrive from one: what it wrote before is answered.
    pub(super) fn hang_up(&self, number: u64) {
        let stream = self.book().streams.get(&number).and_then(Weak::upgrade);
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

/// A place among the connections.
#[derive(Debug)]
pub(super) struct Permit {
    shared: Arc<Shared>,
    number: u64,
    user: u32,
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut book = self.shared.connections.book();
        book.streams.remove(&self.number);
        self.shared.telemetry.went();
        if let Some(of_user) = book.by_user.get_mut(&self.user) {
            *of_user -= 1;
            if *of_user == 0 {
                book.by_user.remove(&self.user);
            }
        }
    }
}
