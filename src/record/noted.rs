//! Recorded events: owned, small, and not decoded before they are written.

use crate::clock::Timestamp;
use crate::engine::{Session, Verdict, WorkOutcome};

/// One event.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) at: Timestamp,
    /// `None` for events that no session caused.
    pub(super) who: Option<EventOrigin>,
    pub(super) what: NotedKind,
}

/// The session that caused an event.
#[derive(Clone, Debug)]
pub struct EventOrigin {
    /// The user (uid) of the client.
    pub user: u32,
    /// The name of the session: from HELLO, or the number of its only connection.
    pub named: [u8; SESSION_BYTES],
    /// The session itself.
    pub session: Session,
}

/// The kind of an event.
#[derive(Debug)]
pub enum NotedKind {
    /// A connection began.
    Hello {
        /// The pool that its leases count in.
        pool: Box<str>,
        /// The number of requests that the process works on at once.
        slots: u32,
    },
    /// A request was decided.
    Judged {
        /// The encoded request.
        payload: Box<[u8]>,
        /// The verdict.
        verdict: Verdict,
        /// The rule that refused it.
        refused_by: Option<Box<str>>,
        /// Its lease.
        lease: Option<u64>,
    },
    /// A charge after the request; the payload is the encoded frame.
    Charged(Box<[u8]>),
    /// A lease ended.
    Ended(u64, WorkOutcome),
    /// A lease was renewed.
    Renewed(u64),
    /// An application reported a signal of its pool.
    Signal {
        /// The name of the signal.
        name: Box<str>,
        /// The sample, in thousandths.
        permille: u16,
    },
    /// The last connection of a session closed; the session ends at this time unless a client reconnects.
    Left(Timestamp),
    /// A session ended.
    Gone,
    /// The engine ran its timed work.
    Tick,
}

impl NotedKind {
    /// Returns the heap bytes of the event.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            NotedKind::Judged { payload, refused_by, .. } => {
                payload.len() + refused_by.as_deref().map_or(0, str::len)
            }
            NotedKind::Charged(payload) => payload.len(),
            NotedKind::Hello { pool: name, .. } | NotedKind::Signal { name, .. } => name.len(),
            NotedKind::Ended(..)
            | NotedKind::Renewed(_)
            | NotedKind::Left(_)
            | NotedKind::Gone
            | NotedKind::Tick => 0,
        }
    }
}

/// The 16 bytes of a HELLO name and one byte that marks whether HELLO set it.
pub const SESSION_BYTES: usize = 17;
