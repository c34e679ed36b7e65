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

use super::digest::{Digest, HashKey};
use super::ledger::{AccountUse, LEASE_BYTES, MemoryLedger, SESSION_BYTES, add_one};
use super::pool::{Pool, PoolTable};
use super::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::clock::{Now, Timestamp};
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

/// Receives the ties of ended leases, after all locks are released.
pub(super) type ReleaseTies<'l> = &'l mut dyn FnMut(&Ties);

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

    /// Opens a connection: joins the named session or begins a new one. Fails if the session belongs to another user, pool or
    /// slot count, or a bound on sessions is reached.
    pub(super) fn open_session(
        &self,
        opening: &ConnectionParams<'_>,
        pools: &PoolTable,
        now: Now,
    ) -> Result<Session, SessionError> {
        let table = match &opening.name {
            Some(name) => self.numbers.table_of(name, TABLES),
            None => usize::try_from(self.numbers.next()).unwrap_or_default() % TABLES,
        };
        let attached = |member, generation, pool: &Arc<Pool>, holdings: &Arc<HeldLeases>| {
            let (pool, holdings) = (Arc::clone(pool), Arc::clone(holdings));
            let id = SessionId { table, member, generation };
            Session(Arc::new(SessionHandle { id, connection: opening.connection, pool, holdings }))
        };
        let mut table = self.lock_table(table);
        if let Some(joined) = table.join(opening) {
            let (number, member) = joined?;
            return Ok(attached(number, member.generation, &member.pool, &member.holdings));
        }
        if !add_one(&self.sessions, SESSIONS_MAX) {
            return Err(SessionError::TooMany);
        }
        let of_user = self.ledger.account(opening.user);
        if !of_user.add_one(&of_user.sessions, USER_SESSIONS_MAX, AccountUse::Sessions) {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
            return Err(SessionError::TooMany);
        }
        let pool = pools.find_or_create(opening.pool);
        let holdings = Arc::new(HeldLeases::new(of_user));
        let (member, generation) = table
            .add(opening, Arc::clone(&pool), Arc::clone(&holdings), now.at)
            .ok_or(SessionError::TooMany)?;
        Ok(attached(member, generation, &pool, &holdings))
    }

    /// Closes one connection of a session; ends a session without a name with its last connection.
    pub(super) fn close_connection(
        &self,
        session: &Session,
        now: Now,
        release_ties: ReleaseTies<'_>,
    ) -> ConnectionEnd {
        let id = session.0.id;
        let end = self.lock_table(id.table).leave(id, now.at);
        match end {
            ConnectionEnd::Ends => self.end_session(session, now.at, release_ties),
            ConnectionEnd::EndsAt(at) => self.lower_next_end(at),
            ConnectionEnd::Stays => {}
        }
        end
    }

    pub(super) fn has_session(&self, session: &Session) -> bool {
        let id = session.0.id;
        self.lock_table(id.table).member(id).is_some()
    }

    pub(super) fn end_session(&self, session: &Session, at: Timestamp, release_ties: ReleaseTies<'_>) {
        self.end_member(session.0.id, at, release_ties);
    }

    fn end_member(&self, id: SessionId, at: Timestamp, release_ties: ReleaseTies<'_>) {
        let mut ended = Vec::new();
        // In batches, so that no other thread waits for all of them.
        loop {
            let mut count = 0;
            let left = self.lock_table(id.table).end_member(id, at, &mut ended, &mut count);
            self.count_ended(LeaseEndReason::Session, count);
            ended.drain(..).for_each(|ties| release_ties(&ties));
            match left {
                MemberEndProgress::More => {}
                // Of two threads that end it concurrently, one gets here.
                MemberEndProgress::Session => {
                    self.sessions.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                MemberEndProgress::Nothing => return,
            }
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

    /// Ends one lease of a session. `None`: the session has no such lease, or the lease expired before (it
    /// then ends as of its expiry).
    pub(super) fn release(
        &self,
        session: &Session,
        number: u64,
        why: LeaseEndReason,
        now: Now,
        release_ties: ReleaseTies<'_>,
    ) -> Option<Ties> {
        let hidden = self.numbers.decode_index(number);
        let id = session.0.id;
        let mut table = self.lock_table(id.table);
        table.member(id)?;
        let (index, lease) = table.lease(hidden, number, id.member)?;
        let ends_at = lease.ends_at;
        // The outcome must not depend on whether `end_due` has run in between.
        let has_expired = ends_at <= now.at;
        let ties = table.end(index, ends_at.min(now.at))?;
        drop(table);
        self.count_ended(if has_expired { LeaseEndReason::Expired } else { why }, 1);
        if has_expired {
            release_ties(&ties);
            return None;
        }
        Some(ties)
    }

    /// Restarts the time to live of a lease. False: the session holds no such live lease.
    pub(super) fn renew(&self, session: &Session, number: u64, now: Now) -> bool {
        let hidden = self.numbers.decode_index(number);
        let id = session.0.id;
        let mut table = self.lock_table(id.table);
        if table.member(id).is_none() {
            return false;
        }
        // A lease past its time still counts until `end_due` ends it, so that it can be renewed.
        let Some((index, _)) = table.lease(hidden, number, id.member) else { return false };
        let ends_at = table.renew(index, now.at);
        drop(table);
        self.lower_next_end(ends_at);
        true
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
        let table = self.lock_table(id.table);
        let lease = table.lease(self.numbers.decode_index(number), number, id.member);
        lease.is_some_and(|(_, lease)| lease.ends_at > now.at)
    }

    /// Ends the leases that were granted to abandoned requests, and remembers the requests that may yet be
    /// granted. Returns the numbers of the ended leases.
    pub(super) fn abandon(
        &self,
        session: &Session,
        reports: &mut dyn Iterator<Item = (u64, u64)>,
        now: Now,
        release_ties: ReleaseTies<'_>,
    ) -> Vec<u64> {
        let mut given_up: HashSet<(u64, u64)> = reports.take(REPORTS_AT_ONCE).collect();
        if given_up.is_empty() {
            return Vec::new();
        }
        let mut ended = Vec::new();
        let id = session.0.id;
        let mut table = self.lock_table(id.table);
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
        self.count_ended(LeaseEndReason::Abandoned, numbers.len() as u64);
        ended.iter().for_each(release_ties);
        numbers
    }

    /// Lets no lease or session end by its time before this one.
    pub(super) fn defer_ends(&self, until: Timestamp) {
        self.deferred_until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Ends expired leases and sessions past their grace period, each as of its own time, in batches.
    pub(super) fn end_due(&self, now: Now, release_ties: ReleaseTies<'_>) {
        let now_nanos = now.at.as_nanos();
        if now_nanos < self.next_end_min.load(Ordering::Acquire)
            || now_nanos < self.deferred_until.load(Ordering::Relaxed)
        {
            return;
        }
        self.next_end_min.store(u64::MAX, Ordering::Release);
        let mut ended = Vec::new();
        for number in 0..TABLES {
            loop {
                let count = self.lock_table(number).end_some(now.at, &mut ended);
                self.count_ended(LeaseEndReason::Expired, count as u64);
                ended.drain(..).for_each(|ties| release_ties(&ties));
                if count == 0 {
                    break;
                }
            }
            loop {
                let left = self.lock_table(number).pop_expired_session(now.at);
                let Some((id, at)) = left else { break };
                self.end_member(id, at, release_ties);
            }
            let none_before = self.lock_table(number).next_end_min();
            self.lower_next_end(none_before);
        }
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
