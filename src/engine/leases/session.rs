//! A session as those know it who ask for it: one process, over one of its connections.

use std::sync::Arc;

use super::member::Holdings;
use crate::clock::Timestamp;
use crate::engine::pool::Pool;

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
