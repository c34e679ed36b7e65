//! Sessions and the leases that they hold. A lease ends exactly once, also under concurrent attempts; the
//! caller that ends it receives its ties.
//!
//! Sessions are spread over [`TABLES`] tables, each under its own lock. No lock is held for more than a bounded
//! number of steps, also when a session with a thousand leases ends. Beginning, renewing and ending a lease
//! are logarithmic in the leases of its table.

mod lease;
mod lease_table;
mod session;

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::EnumCount;

use super::Engine;
use super::digest::{Digest, HashKey};
use super::ledger::{AccountUse, LEASE_BYTES, MemoryLedger, SESSION_BYTES, add_one};
use super::pool::Pool;
use super::snapshot::SnapshotEntry;
use super::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::clock::{Now, Timestamp};
use crate::terms::WorkOutcome;
use lease_table::{LeaseTable, MemberEndProgress};
use session::{HeldLeases, SessionHandle, SessionId};

use lease::LeaseNumbers;
pub(super) use lease::{Covers, NewLease, Ties};
pub use lease::{Lease, LeaseCharge, LeaseCost, LeaseResource};
pub(super) use session::Reservation;
pub use session::{ConnectionEnd, ConnectionParams, OpenSession, Session, SessionError, WrongPool};

#[derive(Debug)]
pub(super) struct Leases {
    tables: Box<[Mutex<LeaseTable>]>,
    pub(super) ledger: MemoryLedger,
    /// Index of the table whose old reports are forgotten next.
    swept: AtomicUsize,
    pub(super) numbers: LeaseNumbers,
    live: AtomicUsize,
    sessions: AtomicUsize,
    /// Lower bound, in nanoseconds, of the next end of a lease or session by time.
    next_end_min: AtomicU64,
    /// Nothing ends by its time before this one, in nanoseconds.
    deferred_until: AtomicU64,
    ended: [AtomicU64; LeaseEndReason::COUNT],
    not_held: [AtomicU64; NotHeld::COUNT],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount)]
pub(super) enum LeaseEndReason {
    Released,
    Expired,
    Session,
    Abandoned,
}

/// Lease counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseTotals {
    /// Live now.
    #[serde(rename = "held")]
    pub live: u64,
    /// Sessions now.
    #[serde(skip)]
    pub sessions: u64,
    /// Ended by a RELEASE.
    pub released: u64,
    /// Ended by their own time.
    pub expired: u64,
    /// Ended with their session.
    pub session: u64,
    /// Ended because their request had been given up on.
    pub abandoned: u64,
    /// Releases and renewals of leases that the session did not hold.
    pub not_held: NotHeldTotals,
}

/// Why a session does not hold a lease that it named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount)]
enum NotHeld {
    Ended,
    Foreign,
    Unknown,
}

/// RELEASE and RENEW of leases that the session did not hold, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotHeldTotals {
    /// The lease had ended: released twice, expired, or ended with its process.
    pub ended: u64,
    /// Another session holds it.
    pub foreign: u64,
    /// This daemon has granted no lease of this number. An invented number counts as `ended` with a probability
    /// of n / 2²⁴ for n leases held at once at the peak.
    pub unknown: u64,
}

impl Leases {
    pub(super) fn new(hash_key: &HashKey) -> Leases {
        Leases {
            tables: (0..TABLES).map(|_| Mutex::default()).collect(),
            ledger: MemoryLedger::default(),
            swept: AtomicUsize::new(0),
            numbers: LeaseNumbers::new(hash_key),
            live: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            next_end_min: AtomicU64::new(u64::MAX),
            deferred_until: AtomicU64::new(0),
            ended: Default::default(),
            not_held: Default::default(),
        }
    }

    /// Reserves a lease for a request. `None`: the session, its user or the host holds too many.
    pub(super) fn reserve<'l>(
        &'l self,
        session: &'l Session,
        name: Option<Digest>,
    ) -> Option<Reservation<'l>> {
        if !add_one(&self.live, LEASES_MAX) {
            return None;
        }
        if !session.0.holdings.reserve(SESSION_LEASES_MAX, USER_LEASES_MAX) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Reservation { leases: self, session, name })
    }

    /// Takes the cost of a live lease of a user, if it covers the refund; `Err`: the cost is recorded under
    /// this name. Any session of the user may refund it.
    pub(super) fn take_cost(
        &self,
        user: u32,
        number: u64,
        now: Now,
        covers: Covers<'_>,
    ) -> Result<Option<Timestamp>, Digest> {
        let hidden = self.numbers.decode_index(number);
        let mut tables = self.tables.iter();
        let taken = tables.find_map(|table| table.lock().take_cost(user, (hidden, number), now.at, covers));
        taken.unwrap_or(Ok(None))
    }

    /// Returns whether the session still holds a live lease of this number.
    pub(super) fn is_live(&self, session: &Session, number: u64, now: Now) -> bool {
        let id = session.0.id;
        let mut table = self.lock_table(id.table);
        let lease = table.lease(self.numbers.decode_index(number), number, id);
        lease.is_some_and(|(_, lease)| lease.ends_at > now.at)
    }

    /// Counts a number that a session named and does not hold. It locks one table after the other, which is
    /// acceptable for a client error: each lock is held no longer than to end a lease.
    #[cold]
    pub(super) fn count_not_held(&self, session: &Session, number: u64) {
        let (id, hidden) = (session.0.id, self.numbers.decode_index(number));
        let mut why = NotHeld::Unknown;
        for table_number in 0..TABLES {
            let table = self.lock_table(table_number);
            match table.find(hidden, number).map(|(_, lease)| lease.member) {
                // The session is ending, and the lease with it.
                Some(member) if (table_number, member) == (id.table, id.member) => {
                    why = NotHeld::Ended;
                }
                Some(_) => {
                    why = NotHeld::Foreign;
                    break;
                }
                None if hidden < table.allocated => why = NotHeld::Ended,
                None => {}
            }
        }
        if let Some(count) = self.not_held.get(why as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets users without sessions and charges, and the old reports of one table per call.
    pub(super) fn sweep(&self, now: Now) {
        self.ledger.forget_users();
        let mut table = self.lock_table(self.swept.fetch_add(1, Ordering::Relaxed));
        table.members.iter_mut().for_each(|(_, member)| member.reports.forget_old(now.at));
    }

    pub(super) fn totals(&self) -> LeaseTotals {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [released, expired, session, abandoned] = self.ended.each_ref().map(read);
        let [ended, foreign, unknown] = self.not_held.each_ref().map(read);
        LeaseTotals {
            live: self.live.load(Ordering::Relaxed) as u64,
            sessions: self.sessions.load(Ordering::Relaxed) as u64,
            released,
            expired,
            session,
            abandoned,
            not_held: NotHeldTotals { ended, foreign, unknown },
        }
    }

    fn lock_table(&self, number: usize) -> MutexGuard<'_, LeaseTable> {
        #[allow(clippy::indexing_slicing, reason = "there are TABLES of them, and the modulus is below that")]
        self.tables[number % TABLES].lock()
    }

    fn lower_next_end(&self, at: Timestamp) {
        if at.as_nanos() < self.next_end_min.load(Ordering::Acquire) {
            self.next_end_min.fetch_min(at.as_nanos(), Ordering::AcqRel);
        }
    }

    fn count_ended(&self, why: LeaseEndReason, leases: u64) {
        if leases == 0 {
            return;
        }
        self.live.fetch_sub(usize::try_from(leases).unwrap_or_default(), Ordering::Relaxed);
        if let Some(count) = self.ended.get(why as usize) {
            count.fetch_add(leases, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// Opens a connection: joins its session or begins a new one.
    ///
    /// # Errors
    /// The session belongs to another user, pool or slot count; a bound on sessions is reached.
    pub fn open_session(&self, opening: &ConnectionParams<'_>, now: Now) -> Result<Session, SessionError> {
        let leases = &self.leases;
        let table = match &opening.name {
            Some(name) => leases.numbers.table_of(name, TABLES),
            None => usize::try_from(leases.numbers.next()).unwrap_or_default() % TABLES,
        };
        let attached = |member, generation, pool: &Arc<Pool>, holdings: &Arc<HeldLeases>| {
            let (pool, holdings) = (Arc::clone(pool), Arc::clone(holdings));
            let id = SessionId { table, member, generation };
            Session(Arc::new(SessionHandle { id, connection: opening.connection, pool, holdings }))
        };
        let mut table = leases.lock_table(table);
        if let Some(joined) = table.join(opening) {
            let (number, member) = joined?;
            return Ok(attached(number, member.generation, &member.pool, &member.holdings));
        }
        if !add_one(&leases.sessions, SESSIONS_MAX) {
            return Err(SessionError::TooMany);
        }
        let of_user = leases.ledger.account(opening.user);
        if !of_user.add_one(&of_user.sessions, USER_SESSIONS_MAX, AccountUse::Sessions) {
            leases.sessions.fetch_sub(1, Ordering::Relaxed);
            return Err(SessionError::TooMany);
        }
        let pool = self.pools.find_or_create(opening.pool);
        let holdings = Arc::new(HeldLeases::new(of_user));
        let (member, generation) = table
            .add(opening, Arc::clone(&pool), Arc::clone(&holdings), now.at)
            .ok_or(SessionError::TooMany)?;
        Ok(attached(member, generation, &pool, &holdings))
    }

    /// Closes a connection. Without connections a named session ends after 5 s, one without a name at once.
    pub fn close_connection(&self, session: &Session, now: Now) -> ConnectionEnd {
        let id = session.0.id;
        let end = self.leases.lock_table(id.table).leave(id, now.at);
        match end {
            ConnectionEnd::Ends => self.end_session(session, now),
            ConnectionEnd::EndsAt(at) => self.leases.lower_next_end(at),
            ConnectionEnd::Stays => {}
        }
        end
    }

    /// Returns every named session.
    #[must_use]
    pub fn open_sessions(&self) -> Vec<OpenSession> {
        let mut all = Vec::new();
        self.leases.copy_out(&mut |entry| {
            if let SnapshotEntry::Session(session) = entry {
                all.push(*session);
            }
        });
        all
    }

    /// Returns whether a session has not ended.
    #[must_use]
    pub fn has_session(&self, session: &Session) -> bool {
        let id = session.0.id;
        self.leases.lock_table(id.table).member(id).is_some()
    }

    /// Ends a session and all its leases, after its process has died.
    pub fn end_session(&self, session: &Session, now: Now) {
        self.end_member(session.0.id, now.at, now);
    }

    fn end_member(&self, id: SessionId, at: Timestamp, now: Now) {
        let mut ended = Vec::new();
        // In batches, so that no other thread waits for all of them.
        loop {
            let mut count = 0;
            let left = self.leases.lock_table(id.table).end_member(id, at, &mut ended, &mut count);
            self.leases.count_ended(LeaseEndReason::Session, count);
            self.release_without_outcome(&mut ended, now);
            match left {
                MemberEndProgress::More => {}
                // Of two threads that end it concurrently, one gets here.
                MemberEndProgress::Session => {
                    self.leases.sessions.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                MemberEndProgress::Nothing => return,
            }
        }
    }

    /// Releases a lease. Returns whether the session held it; if not, only counts the error.
    pub fn release_lease(&self, session: &Session, lease: u64, outcome: WorkOutcome, now: Now) -> bool {
        let held = self.end_lease(session, lease, outcome, LeaseEndReason::Released, now);
        if !held {
            self.leases.count_not_held(session, lease);
        }
        held
    }

    /// Ends a grant that could not be delivered, as if its request had been abandoned.
    pub fn revoke_lease(&self, session: &Session, lease: u64, now: Now) {
        self.end_lease(session, lease, WorkOutcome::Dropped, LeaseEndReason::Abandoned, now);
    }

    /// Ends one lease of a session. Returns whether there was one; one that expired before ends as of its expiry.
    fn end_lease(
        &self,
        session: &Session,
        number: u64,
        outcome: WorkOutcome,
        why: LeaseEndReason,
        now: Now,
    ) -> bool {
        let id = session.0.id;
        let mut table = self.leases.lock_table(id.table);
        let lease = table.lease(self.leases.numbers.decode_index(number), number, id);
        let Some((index, ends_at)) = lease.map(|(index, lease)| (index, lease.ends_at)) else { return false };
        let Some(ties) = table.end(index, ends_at.min(now.at)) else { return false };
        drop(table);
        // The outcome must not depend on whether `end_expired_leases` has run in between.
        if ends_at <= now.at {
            self.leases.count_ended(LeaseEndReason::Expired, 1);
            self.release_without_outcome(&mut vec![ties], now);
            return false;
        }
        self.leases.count_ended(why, 1);
        self.release_ties(ties.iter(), outcome, why == LeaseEndReason::Abandoned, now);
        for tie in ties.iter() {
            if let LeaseResource::IdempotencyKey(name) = tie {
                self.idempotency.forget_if(&name, &self.shards, |grant| grant.lease == Some(number));
            }
        }
        true
    }

    /// Restarts the time to live of a lease. Returns whether the session held it.
    #[must_use]
    pub fn renew_lease(&self, session: &Session, number: u64, now: Now) -> bool {
        let id = session.0.id;
        let mut table = self.leases.lock_table(id.table);
        // A lease past its time still counts until `end_expired_leases` ends it, so that it can be renewed.
        let lease = table.lease(self.leases.numbers.decode_index(number), number, id);
        let ends_at = lease.map(|(index, _)| index).map(|index| table.renew(index, now.at));
        drop(table);
        match ends_at {
            Some(ends_at) => self.leases.lower_next_end(ends_at),
            None => self.leases.count_not_held(session, number),
        }
        ends_at.is_some()
    }

    /// Ends the leases of abandoned requests, each named by its connection's number and its id; requests
    /// granted later end at once. Returns the leases that ended.
    pub fn abandon_requests(
        &self,
        session: &Session,
        reports: &mut dyn Iterator<Item = (u64, u64)>,
        now: Now,
    ) -> Vec<u64> {
        let mut given_up: HashSet<(u64, u64)> = reports.take(REPORTS_AT_ONCE).collect();
        if given_up.is_empty() {
            return Vec::new();
        }
        let mut ended = Vec::new();
        let id = session.0.id;
        let mut table = self.leases.lock_table(id.table);
        if table.member(id).is_none() {
            return Vec::new();
        }
        let is_one = |connection, request| given_up.remove(&(connection, request));
        let numbers = table.end_of_requests(id.member, now.at, is_one, &mut ended);
        if let Some(member) = table.member(id) {
            given_up
                .iter()
                .for_each(|(connection, request)| member.reports.remember(*connection, *request, now.at));
        }
        drop(table);
        self.leases.count_ended(LeaseEndReason::Abandoned, numbers.len() as u64);
        ended.iter().for_each(|ties| self.release_ties(ties.iter(), WorkOutcome::Dropped, true, now));
        numbers
    }

    /// Ends no lease and no session by its time before this one, as renewals may wait unread: leases of work in progress
    /// must not end because the daemon stood still.
    pub fn defer_lease_ends(&self, until: Timestamp) {
        self.leases.deferred_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Ends expired leases and sessions past their grace period, each as of its own time, in batches.
    pub fn end_expired_leases(&self, now: Now) {
        let (leases, now_nanos) = (&self.leases, now.at.as_nanos());
        if now_nanos < leases.next_end_min.load(Ordering::Acquire)
            || now_nanos < leases.deferred_until.load(Ordering::Relaxed)
        {
            return;
        }
        leases.next_end_min.store(u64::MAX, Ordering::Release);
        let mut ended = Vec::new();
        for number in 0..TABLES {
            loop {
                let count = leases.lock_table(number).end_some(now.at, &mut ended);
                leases.count_ended(LeaseEndReason::Expired, count as u64);
                self.release_without_outcome(&mut ended, now);
                if count == 0 {
                    break;
                }
            }
            loop {
                let left = leases.lock_table(number).pop_expired_session(now.at);
                let Some((id, at)) = left else { break };
                self.end_member(id, at, now);
            }
            let none_before = leases.lock_table(number).next_end_min();
            leases.lower_next_end(none_before);
        }
    }

    fn release_without_outcome(&self, ended: &mut Vec<Ties>, now: Now) {
        ended.drain(..).for_each(|ties| self.release_ties(ties.iter(), WorkOutcome::Dropped, false, now));
    }
}

/// Enough locks to keep decision threads apart, and each table small.
const TABLES: usize = 64;

/// Maximum leases of a session: far more than a process works on at once.
const SESSION_LEASES_MAX: usize = 1_024;

/// Maximum leases of a user, so that one application does not shut out the others.
const USER_LEASES_MAX: usize = 16_384;

/// Maximum leases of the host, about 128 bytes each.
const LEASES_MAX: usize = 1 << 20;

/// Maximum sessions: at most one for each connection, plus those closed within the last five seconds.
const SESSIONS_MAX: usize = 16_384;

pub(super) const BYTES_MAX: usize = LEASES_MAX * LEASE_BYTES + SESSIONS_MAX * SESSION_BYTES;

/// Maximum sessions of one user, so that one application does not shut out the others: its maximum of
/// connections, times four for those in the grace period.
const USER_SESSIONS_MAX: usize = 4_096;

/// Maximum reports taken from one frame: as many as a session remembers.
const REPORTS_AT_ONCE: usize = 1_024;
