//! The sessions of a trace and what they hold, each known by the name that the trace gives it. What they may do is the
//! engine's affair.

use std::collections::HashMap;

use hashbrown::HashTable;

use super::event::{By, Hello};
use super::ids::Id;
use crate::clock::Now;
use crate::engine::{Engine, NotOpened, Opening, Session, WorkOutcome};

/// Sessions and leases by their names.
#[derive(Debug, Default)]
pub(super) struct Work {
    named: HashMap<Box<str>, Session>,
    /// Sessions of those who say nothing of theirs, by their pool.
    unnamed: HashMap<Box<str>, Session>,
    leases: HashTable<Held>,
    /// How many there may be before those that ended by themselves are looked for.
    leases_until: usize,
}

/// A piece of work that was granted.
#[derive(Debug)]
struct Held {
    id: Id,
    session: Session,
    lease: u64,
}

impl Work {
    /// A process begins.
    pub(super) fn hello(&mut self, engine: &Engine, hello: &Hello<'_>, now: Now) -> Result<(), NotOpened> {
        let Hello { session, pool, slots } = *hello;
        let name = Some(Id::of(session).to_bytes());
        let opened = engine.open(&Opening { name, pool, slots, ..UNKNOWN }, now)?;
        self.named.insert(session.into(), opened);
        Ok(())
    }

    /// The session of whoever asks. One that never said a word is of the pool of those who say nothing of theirs.
    pub(super) fn session(&mut self, engine: &Engine, by: &By<'_>, now: Now) -> Result<Session, NotOpened> {
        let Some(session) = by.session else { return self.session_in(engine, UNKNOWN.pool, now) };
        if let Some(known) = self.named.get(session) {
            return Ok(known.clone());
        }
        self.hello(engine, &Hello { session, pool: UNKNOWN.pool, slots: UNKNOWN.slots }, now)?;
        self.named.get(session).cloned().ok_or(NotOpened::TooMany)
    }

    /// The session without a name in a pool.
    pub(super) fn session_in(&mut self, engine: &Engine, pool: &str, now: Now) -> Result<Session, NotOpened> {
        if let Some(known) = self.unnamed.get(pool) {
            return Ok(known.clone());
        }
        let opened = engine.open(&Opening { pool, ..UNKNOWN }, now)?;
        self.unnamed.insert(pool.into(), opened.clone());
        Ok(opened)
    }

    /// Whether a session was ever opened.
    pub(super) fn has_begun(&self) -> bool {
        !(self.named.is_empty() && self.unnamed.is_empty())
    }

    /// A process ends, and all its work.
    pub(super) fn bye(&mut self, engine: &Engine, session: &str, now: Now) {
        if let Some(session) = self.named.remove(session) {
            engine.end(&session, now);
        }
    }

    /// A piece of work was granted.
    pub(super) fn note(&mut self, engine: &Engine, id: Id, session: Session, lease: u64, now: Now) {
        if self.leases.len() >= self.leases_until.max(LEASES_UNTIL_MIN) {
            self.leases.retain(|held| engine.holds(&held.session, held.lease, now));
            self.leases_until = self.leases.len().saturating_mul(2);
        }
        self.leases.insert_unique(id.hash(), Held { id, session, lease }, |held| held.id.hash());
    }

    /// Ends a piece of work; whether it was there.
    pub(super) fn release(&mut self, engine: &Engine, id: Id, outcome: WorkOutcome, now: Now) -> bool {
        let Ok(found) = self.leases.find_entry(id.hash(), |held| held.id == id) else { return false };
        let (Held { session, lease, .. }, _) = found.remove();
        engine.release(&session, lease, outcome, now)
    }

    /// The lease of a piece of work, if it was granted and has not ended.
    pub(super) fn lease(&self, id: Id) -> Option<u64> {
        self.leases.find(id.hash(), |held| held.id == id).map(|held| held.lease)
    }

    /// Starts the time of a piece of work again; whether it was there.
    pub(super) fn renew(&self, engine: &Engine, id: Id, now: Now) -> bool {
        let held = self.leases.find(id.hash(), |held| held.id == id);
        held.is_some_and(|held| engine.renew(&held.session, held.lease, now))
    }
}

/// What holds for those who say nothing of themselves.
const UNKNOWN: Opening<'_> =
    Opening { name: None, user: USER, pool: "default", slots: 0, connection: 1, pid: None };

/// A trace has no users: all that it asks is one's.
pub(crate) const USER: u32 = 0;

/// Fewer are not worth to be looked through.
const LEASES_UNTIL_MIN: usize = 4_096;
