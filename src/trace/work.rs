//! The sessions and leases of a trace, by the names that the trace gives them.

use std::collections::HashMap;

use hashbrown::HashTable;

use super::event::{HelloEvent, LeaseOwner};
use super::ids::IdDigest;
use crate::clock::Now;
use crate::engine::{ConnectionParams, Engine, Session, SessionError, WorkOutcome};

#[derive(Debug, Default)]
pub(super) struct TraceWork {
    named: HashMap<Box<str>, Session>,
    /// Sessions without a name, by pool.
    unnamed: HashMap<Box<str>, Session>,
    leases: HashTable<HeldLease>,
    /// The number of leases above which expired ones are removed.
    leases_until: usize,
}

#[derive(Debug)]
struct HeldLease {
    id: IdDigest,
    session: Session,
    lease: u64,
}

impl TraceWork {
    pub(super) fn hello(
        &mut self,
        engine: &Engine,
        hello: &HelloEvent<'_>,
        now: Now,
    ) -> Result<(), SessionError> {
        let HelloEvent { session, pool, slots } = *hello;
        let name = Some(IdDigest::of(session).to_bytes());
        let opened = engine.open_session(&ConnectionParams { name, pool, slots, ..UNKNOWN }, now)?;
        self.named.insert(session.into(), opened);
        Ok(())
    }

    /// Returns the session of a request. One without `hello` is in the default pool.
    pub(super) fn session(
        &mut self,
        engine: &Engine,
        by: &LeaseOwner<'_>,
        now: Now,
    ) -> Result<Session, SessionError> {
        let Some(session) = by.session else { return self.session_in(engine, UNKNOWN.pool, now) };
        if let Some(known) = self.named.get(session) {
            return Ok(known.clone());
        }
        self.hello(engine, &HelloEvent { session, pool: UNKNOWN.pool, slots: UNKNOWN.slots }, now)?;
        self.named.get(session).cloned().ok_or(SessionError::TooMany)
    }

    /// The unnamed session of a pool.
    pub(super) fn session_in(
        &mut self,
        engine: &Engine,
        pool: &str,
        now: Now,
    ) -> Result<Session, SessionError> {
        if let Some(known) = self.unnamed.get(pool) {
            return Ok(known.clone());
        }
        let opened = engine.open_session(&ConnectionParams { pool, ..UNKNOWN }, now)?;
        self.unnamed.insert(pool.into(), opened.clone());
        Ok(opened)
    }

    /// Whether a session was ever opened.
    pub(super) fn has_begun(&self) -> bool {
        !(self.named.is_empty() && self.unnamed.is_empty())
    }

    /// Closes a session and ends its leases.
    pub(super) fn bye(&mut self, engine: &Engine, session: &str, now: Now) {
        if let Some(session) = self.named.remove(session) {
            engine.end_session(&session, now);
        }
    }

    pub(super) fn note(&mut self, engine: &Engine, id: IdDigest, session: Session, lease: u64, now: Now) {
        if self.leases.len() >= self.leases_until.max(LEASES_UNTIL_MIN) {
            self.leases.retain(|held| engine.holds_lease(&held.session, held.lease, now));
            self.leases_until = self.leases.len().saturating_mul(2);
        }
        self.leases.insert_unique(id.hash(), HeldLease { id, session, lease }, |held| held.id.hash());
    }

    /// Ends a lease; returns whether it existed.
    pub(super) fn release(&mut self, engine: &Engine, id: IdDigest, outcome: WorkOutcome, now: Now) -> bool {
        let Ok(found) = self.leases.find_entry(id.hash(), |held| held.id == id) else { return false };
        let (HeldLease { session, lease, .. }, _) = found.remove();
        engine.release_lease(&session, lease, outcome, now)
    }

    /// The lease of an id, if it was granted and not released.
    pub(super) fn lease(&self, id: IdDigest) -> Option<u64> {
        self.leases.find(id.hash(), |held| held.id == id).map(|held| held.lease)
    }

    /// Renews a lease; returns whether it existed.
    pub(super) fn renew(&self, engine: &Engine, id: IdDigest, now: Now) -> bool {
        let held = self.leases.find(id.hash(), |held| held.id == id);
        held.is_some_and(|held| engine.renew_lease(&held.session, held.lease, now))
    }
}

/// The defaults of sessions without `hello`.
const UNKNOWN: ConnectionParams<'_> =
    ConnectionParams { name: None, user: USER, pool: "default", slots: 0, connection: 1, pid: None };

/// A trace has no users: all requests are of one.
pub(crate) const USER: u32 = 0;

/// Below this number no leases are searched for expired ones.
const LEASES_UNTIL_MIN: usize = 4_096;
