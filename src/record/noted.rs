//! What is put aside of a request: owned, small, and not looked into before somebody writes it.

use crate::clock::Timestamp;
use crate::engine::{Session, Verdict, WorkOutcome};

/// One thing that happened.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) at: Timestamp,
    /// `None`: nobody's doing.
    pub(super) who: Option<Who>,
    pub(super) what: What,
}

/// Whose doing it was.
#[derive(Clone, Debug)]
pub struct Who {
    /// The user at the other end.
    pub user: u32,
    /// What the session is called: by HELLO, or by the number of its only connection.
    pub named: [u8; SESSION_BYTES],
    /// The session itself.
    pub session: Session,
}

/// What happened.
#[derive(Debug)]
pub enum What {
    /// A connection began.
    Hello {
        /// The pool that its work counts in.
        pool: Box<str>,
        /// How many requests the process works on at once.
        slots: u32,
    },
    /// A request was judged.
    Judged {
        /// As it came.
        payload: Box<[u8]>,
        /// What came of it.
        verdict: Verdict,
        /// What refused it.
        refused_by: Option<Box<str>>,
        /// The lease that it has.
        lease: Option<u64>,
    },
    /// Something was charged after the fact.
    Charged(Box<[u8]>),
    /// A lease ended.
    Ended(u64, WorkOutcome),
    /// The time of a lease began again.
    Renewed(u64),
    /// An application told about its pool.
    Signal {
        /// What was read.
        name: Box<str>,
        /// In thousandths.
        permille: u16,
    },
    /// The last connection of a session ended, which ends then if nobody connects before.
    Left(Timestamp),
    /// A session ended.
    Gone,
    /// The engine has done what happens by itself.
    Tick,
}

impl What {
    /// The bytes that it takes besides its place.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            What::Judged { payload, refused_by, .. } => {
                payload.len() + refused_by.as_deref().map_or(0, str::len)
            }
            What::Charged(payload) => payload.len(),
            What::Hello { pool: name, .. } | What::Signal { name, .. } => name.len(),
            What::Ended(..) | What::Renewed(_) | What::Left(_) | What::Gone | What::Tick => 0,
        }
    }
}

/// The sixteen of HELLO, and one that says whether HELLO named it.
pub const SESSION_BYTES: usize = 17;
