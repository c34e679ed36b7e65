//! Sessions: one client process each, over one or more connections.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Leases;
use super::lease::{Lease, NewLease, Ties};
use crate::clock::{Now, Timestamp};
use crate::engine::digest::Digest;
use crate::engine::ledger::{Account, AccountUse, add_one};
use crate::engine::pool::Pool;
use crate::engine::sync::{AtomicUsize, Ordering};

/// A handle to a session over one connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Session(pub(super) Arc<SessionHandle>);

#[derive(Debug)]
pub(super) struct SessionHandle {
    pub(super) id: SessionId,
    /// The client's own number of the connection.
    pub(super) connection: u64,
    pub(super) pool: Arc<Pool>,
    pub(super) holdings: Arc<HeldLeases>,
}

/// Identifies a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionId {
    /// The index of its table, and its number there.
    pub(super) table: usize,
    pub(super) member: u32,
    /// Distinguishes it from earlier sessions of the same number.
    pub(super) generation: u64,
}

/// The parameters of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionParams<'a> {
    /// The name of its session; `None`: a session of its own.
    pub name: Option<[u8; 16]>,
    /// The user (uid) at the other end.
    pub user: u32,
    /// The pool that its requests count in.
    pub pool: &'a str,
    /// The concurrency of the process in requests; 0: unknown.
    pub slots: u32,
    /// The client's own number of the connection in this session.
    pub connection: u64,
    /// The process id, if known.
    pub pid: Option<u32>,
}

/// The effect on a session of one of its connections closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The session has other connections, or ended before.
    Stays,
    /// The session ends at this time unless it reconnects.
    EndsAt(Timestamp),
    /// The session had no name to reconnect by and has ended.
    Ends,
}

/// A named session, also in a snapshot. Others end with their connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// Its name.
    pub name: [u8; 16],
    /// The user (uid) that it belongs to.
    pub user: u32,
    /// Its process, if known.
    pub pid: Option<u32>,
    /// The pool that its requests count in.
    pub pool: Box<str>,
    /// The concurrency of the process in requests; 0: unknown.
    pub slots: u32,
    /// When it ends unless it reconnects; `None`: it is connected.
    #[serde(skip)]
    pub ends_at: Option<Timestamp>,
}

/// Why a connection cannot join or begin a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SessionError {
    #[error("this session belongs to another user")]
    OtherUser,
    #[error("this session began with another pool or another number of slots")]
    OtherPoolOrSlots,
    #[error("there are too many sessions")]
    TooMany,
}

/// A signal for a pool other than the session's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session tells about its own pool alone")]
pub struct WrongPool;

impl Session {
    /// The pool that its requests count in.
    pub fn pool_name(&self) -> &str {
        self.0.pool.name()
    }

    /// Returns the number of the session, which no other one since the start has had.
    pub fn number(&self) -> u64 {
        // Generations are unique within a table.
        self.0.id.generation << 8 | self.0.id.table as u64
    }

    pub(in crate::engine) fn pool(&self) -> &Arc<Pool> {
        &self.0.pool
    }
}

#[derive(Debug)]
pub(super) struct SessionMember {
    pub(super) name: Option<[u8; 16]>,
    pub(super) generation: u64,
    pub(super) user: u32,
    pub(super) pid: Option<u32>,
    pub(super) pool: Arc<Pool>,
    /// The concurrency of its process in requests; 0: unknown.
    pub(super) slots: u32,
    pub(super) connections: u32,
    pub(super) ends_at: Option<Timestamp>,
    /// The slab indexes of its leases.
    pub(super) leases: BTreeSet<u32>,
    pub(super) holdings: Arc<HeldLeases>,
    pub(super) reports: Reports,
}

/// Counts the leases that a session holds or has reserved, together with its user's account.
#[derive(Debug)]
pub(super) struct HeldLeases {
    of_session: AtomicUsize,
    pub(super) of_user: Arc<Account>,
}

impl SessionMember {
    /// Returns the session, if it has a name.
    pub(super) fn open(&self) -> Option<OpenSession> {
        let SessionMember { user, pid, slots, ends_at, .. } = *self;
        self.name.map(|name| OpenSession { name, user, pid, pool: self.pool.name().into(), slots, ends_at })
    }

    /// Returns whether one more lease occupies another of its slots.
    pub(super) fn takes_slot(&self) -> bool {
        self.slots == 0 || self.leases.len() < self.slots as usize
    }

    /// Returns whether ending a lease frees a slot. Call it while the lease still counts.
    pub(super) fn frees_slot(&self) -> bool {
        self.slots == 0 || self.leases.len() <= self.slots as usize
    }
}

impl HeldLeases {
    pub(super) fn new(of_user: Arc<Account>) -> HeldLeases {
        HeldLeases { of_session: AtomicUsize::new(0), of_user }
    }

    pub(super) fn reserve(&self, session_max: usize, user_max: usize) -> bool {
        if !add_one(&self.of_session, session_max) {
            return false;
        }
        let fits = self.of_user.add_one(&self.of_user.leases, user_max, AccountUse::Leases);
        if !fits {
            self.of_session.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }

    pub(super) fn release(&self) {
        self.of_session.fetch_sub(1, Ordering::Relaxed);
        self.of_user.leases.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A counted lease that is not granted yet; dropping it frees the count.
#[derive(Debug)]
pub(in crate::engine) struct Reservation<'l> {
    pub(super) leases: &'l Leases,
    pub(in crate::engine) session: &'l Session,
    pub(in crate::engine) name: Option<Digest>,
}

impl Reservation<'_> {
    /// Grants the lease and returns its number. `None`: the session has ended, or the request was abandoned.
    pub(in crate::engine) fn grant(self, new: &NewLease<'_>, now: Now) -> Option<u64> {
        let (leases, session) = (self.leases, self.session);
        let SessionHandle { id, connection, .. } = *session.0;
        let mut table = leases.lock_table(id.table);
        if table.member(id)?.reports.take(connection, new.request, now.at) {
            return None;
        }
        let number = leases.numbers.encode_number(u32::try_from(table.leases.vacant_key()).ok()?);
        let lease = Lease {
            number,
            ends_at: new.starts_at.after(new.ttl),
            ttl_millis: u32::try_from(new.ttl.as_millis()).unwrap_or(u32::MAX),
            request: new.request,
            connection: u32::try_from(connection).unwrap_or(u32::MAX),
            is_noncritical: new.is_noncritical,
            ties: Ties::from_slice(new.ties),
            cost: new.cost,
            member: id.member,
        };
        table.begin(lease, now.at)?;
        drop(table);
        leases.lower_next_end(now.at.after(new.ttl));
        self.keep();
        Some(number)
    }

    /// Keeps the count beyond the reservation.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.session.0.holdings.release();
        self.leases.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Abandoned requests of a session that may yet be granted, oldest first. Their bytes are charged to its user.
#[derive(Debug)]
pub(super) struct Reports {
    reports: VecDeque<AbandonedReport>,
    charged: usize,
    account: Arc<Account>,
}

#[derive(Clone, Copy, Debug)]
struct AbandonedReport {
    connection: u64,
    request: u64,
    at: Timestamp,
}

impl Reports {
    pub(super) fn new(account: Arc<Account>) -> Reports {
        Reports { reports: VecDeque::new(), charged: 0, account }
    }

    /// Remembers a request. Evicts the session's oldest report if there are too many or its user's account is
    /// full; if there is none to evict, does not remember the request.
    pub(super) fn remember(&mut self, connection: u64, request: u64, at: Timestamp) {
        self.forget_old(at);
        let is_full = self.reports.len() == self.reports.capacity();
        if is_full && !self.grow() && self.reports.pop_front().is_none() {
            return;
        }
        self.reports.push_back(AbandonedReport { connection, request, at });
    }

    /// Returns whether a request was abandoned and forgets it: a grant ends the request.
    pub(super) fn take(&mut self, connection: u64, request: u64, now: Timestamp) -> bool {
        if self.reports.is_empty() {
            return false;
        }
        self.forget_old(now);
        let is = |report: &AbandonedReport| report.connection == connection && report.request == request;
        let index = self.reports.iter().position(is);
        index.is_some_and(|index| self.reports.remove(index).is_some())
    }

    /// Forgets reports after [`REMEMBERED`]; frees the memory with the last.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        while self.reports.front().is_some_and(|report| now.since(report.at) >= REMEMBERED) {
            self.reports.pop_front();
        }
        if self.reports.is_empty() && self.charged > 0 {
            self.reports = VecDeque::new();
            self.account.shrink(std::mem::take(&mut self.charged));
        }
    }

    fn grow(&mut self) -> bool {
        let count = self.reports.len();
        let more = count.max(REPORTS_MIN).min(REPORTS_MAX.saturating_sub(count));
        let bytes = more * size_of::<AbandonedReport>();
        if more == 0 || !self.account.grow(AccountUse::Reports, bytes) {
            return false;
        }
        self.charged += bytes;
        self.reports.reserve_exact(more);
        true
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.account.shrink(self.charged);
    }
}

/// Maximum reports of a session: as many as it may hold leases.
const REPORTS_MAX: usize = 1_024;

const REPORTS_MIN: usize = 8;

/// Far longer than a grant takes to be answered.
const REMEMBERED: Duration = Duration::from_secs(60);
