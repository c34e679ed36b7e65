//! A session as those know it who ask for it: one process, over one of its connections.

use std::sync::Arc;

use super::lease::NONE;
use super::reports::Reports;
use crate::clock::Timestamp;
use crate::engine::ledger::{Account, Use};
use crate::engine::pool::Pool;
use crate::engine::sync::{AtomicUsize, Ordering};

/// One process that asks, over one connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Session(pub(super) Arc<Attached>);

#[derive(Debug)]
pub(super) struct Attached {
    /// Which book it is in, and its number there.
    pub(super) book: usize,
    pub(super) member: u32,
    pub(super) generation: u64,
    /// The connection, by the client's own count.
    pub(super) connection: u64,
    pub(super) pool: Arc<Pool>,
    pub(super) holdings: Arc<Holdings>,
}

/// How a connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The session that it is part of; `None`: it is its own.
    pub name: Option<[u8; 16]>,
    /// The user at the other end.
    pub user: u32,
    /// The pool that its work counts in.
    pub pool: &'a str,
    /// How many requests the process works on at once; 0: unknown.
    pub slots: u32,
    /// The client's own count of its connections in this session.
    pub connection: u64,
    /// The process, if it is known.
    pub pid: Option<u32>,
}

/// What becomes of a session when one of its connections ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// It has others, or ended before.
    Stays,
    /// It ends then, if nobody connects before.
    EndsAt(Timestamp),
    /// It has no name to come back to, and has ended.
    Ends,
}

/// A session that has a name, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// Its name.
    pub name: [u8; 16],
    /// Whose it is.
    pub user: u32,
    /// The pool that its work counts in.
    pub pool: Box<str>,
    /// How many requests the process works on at once; 0: unknown.
    pub slots: u32,
    /// When it ends, if nobody connects before; `None`: somebody is connected.
    pub ends_at: Option<Timestamp>,
}

/// Why a connection is not let into a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// The session is another user's.
    #[error("this session belongs to another user")]
    OtherUser,
    /// It began with other words.
    #[error("this session began with another pool or another number of slots")]
    OtherPoolOrSlots,
    /// There are too many sessions.
    #[error("there are too many sessions")]
    TooMany,
}

/// A signal for a pool that is not the session's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session tells about its own pool alone")]
pub struct NotItsPool;

/// How work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkOutcome {
    /// Well.
    Ok,
    /// Badly.
    Error,
    /// It was dropped, or took too long.
    Dropped,
}

impl Session {
    /// The pool that its work counts in.
    #[must_use]
    pub fn pool_name(&self) -> &str {
        self.0.pool.name()
    }

    /// What tells it from other sessions of its pool.
    pub(in crate::engine) fn number(&self) -> u64 {
        // Generations count the sessions of one book.
        self.0.generation << 8 | self.0.book as u64
    }

    pub(in crate::engine) fn pool(&self) -> &Arc<Pool> {
        &self.0.pool
    }
}

/// One session.
#[derive(Debug)]
pub(super) struct Member {
    /// Its own name, if it gave one.
    pub(super) name: Option<[u8; 16]>,
    /// Tells it from who had the same number before.
    pub(super) generation: u64,
    pub(super) user: u32,
    pub(super) pid: Option<u32>,
    pub(super) pool: Arc<Pool>,
    /// How many requests it works on at once; 0: unknown.
    pub(super) slots: u32,
    pub(super) connections: u32,
    /// When it ends, if nobody connects before.
    pub(super) ends_at: Option<Timestamp>,
    /// Its leases: the first, and how many.
    pub(super) first: u32,
    pub(super) working: u32,
    /// Of these, the ones that are other than the most important work.
    pub(super) others: u32,
    pub(super) holdings: Arc<Holdings>,
    pub(super) reports: Reports,
}

/// How many leases a session holds or is about to, beside all of its user.
#[derive(Debug)]
pub(super) struct Holdings {
    of_session: AtomicUsize,
    of_user: Arc<Account>,
}

impl Member {
    pub(super) fn new(
        name: Option<[u8; 16]>,
        generation: u64,
        user: u32,
        pid: Option<u32>,
        pool: Arc<Pool>,
        slots: u32,
        holdings: Arc<Holdings>,
    ) -> Member {
        Member {
            name,
            generation,
            user,
            pid,
            pool,
            slots,
            connections: 1,
            ends_at: None,
            first: NONE,
            working: 0,
            others: 0,
            reports: Reports::new(Arc::clone(&holdings.of_user)),
            holdings,
        }
    }

    /// Whether one more piece of work takes one more of its slots.
    pub(super) fn takes_slot(&self) -> bool {
        self.slots == 0 || self.working < self.slots
    }

    /// Whether one piece of work less frees a slot. To be asked while it still counts.
    pub(super) fn frees_slot(&self) -> bool {
        self.slots == 0 || self.working <= self.slots
    }
}

impl Holdings {
    pub(super) fn new(of_user: Arc<Account>) -> Holdings {
        Holdings { of_session: AtomicUsize::new(0), of_user }
    }

    /// Keeps a place for one more lease, if there may be one.
    pub(super) fn reserve(&self, session_max: usize, user_max: usize) -> bool {
        if self.of_session.fetch_add(1, Ordering::Relaxed) >= session_max {
            self.of_session.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        if self.of_user.leases.fetch_add(1, Ordering::Relaxed) >= user_max
            || !self.of_user.has_room(Use::Leases)
        {
            self.give_back();
            return false;
        }
        true
    }

    /// A lease begins that these bytes are tied to.
    pub(super) fn charge(&self, bytes: usize) {
        if bytes > 0 {
            self.of_user.charge(bytes);
        }
    }

    /// A lease has ended that these bytes were tied to.
    pub(super) fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.of_user.shrink(bytes);
        }
    }

    /// The session has ended.
    pub(super) fn leave(&self) {
        self.of_user.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self) {
        self.of_session.fetch_sub(1, Ordering::Relaxed);
        self.of_user.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
