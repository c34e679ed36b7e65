//! Per-user accounts of the bytes that clients make the daemon hold outside the tables.
//!
//! Every use without a bound of its own is charged before it grows. A user may hold at most
//! [`USER_BYTES_MAX`], and at most the bytes that are free: the more users fill their accounts, the less each
//! may add, so that room is left for another user.

use std::collections::HashMap;
use std::sync::Arc;

use strum::VariantNames;

use super::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

#[derive(Debug, Default)]
pub(super) struct MemoryLedger {
    accounts: Mutex<HashMap<u32, Arc<Account>>>,
    all: Arc<LedgerTotals>,
}

#[derive(Debug, Default)]
struct LedgerTotals {
    bytes: AtomicUsize,
    refused: [AtomicU64; AccountUse::VARIANTS.len()],
}

/// The charges of one user, shared by its connections and sessions.
#[derive(Debug, Default)]
pub struct Account {
    bytes: AtomicUsize,
    all: Arc<LedgerTotals>,
    pub(super) leases: AtomicUsize,
    pub(super) sessions: AtomicUsize,
    connections: AtomicUsize,
    /// Bytes with limits of their own, which leave the room of this account as it is.
    beside: AtomicUsize,
}

/// The purposes of charges. Dispensable uses have a lower limit, so they are refused first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum AccountUse {
    /// Reports of abandoned requests.
    Reports,
    /// Requests that wait for a remote check.
    #[strum(serialize = "waits")]
    PendingRequests,
    /// Large frames and unread replies.
    Buffers,
    /// A session.
    Sessions,
    /// A lease with its ties.
    Leases,
}

/// Bytes held for clients outside the tables; estimates for items of fixed size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBytes {
    /// For all users.
    pub total: u64,
    /// For the user that holds the most.
    pub largest_user: u64,
    /// Refused charges by use.
    pub refused: Vec<(&'static str, u64)>,
}

impl MemoryLedger {
    pub(super) fn account(&self, user: u32) -> Arc<Account> {
        let mut accounts = self.accounts.lock();
        let open = || Arc::new(Account { all: Arc::clone(&self.all), ..Account::default() });
        Arc::clone(accounts.entry(user).or_insert_with(open))
    }

    /// Forgets users without charges, sessions and connections.
    pub(super) fn forget_users(&self) {
        self.accounts.lock().retain(|_, account| Arc::strong_count(account) > 1);
    }

    pub(super) fn held(&self) -> HeldBytes {
        let accounts = self.accounts.lock();
        let held = || accounts.values().map(|account| account.held());
        let refused = self.all.refused.iter().map(|count| count.load(Ordering::Relaxed));
        HeldBytes {
            total: held().sum(),
            largest_user: held().max().unwrap_or_default(),
            refused: AccountUse::VARIANTS.iter().copied().zip(refused).collect(),
        }
    }
}

impl Account {
    /// Charges `bytes` if they fit. Otherwise returns false, charges nothing and counts the refusal.
    #[must_use]
    pub fn grow(&self, what: AccountUse, bytes: usize) -> bool {
        let total = self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
        let most = what.bytes_max().min(BYTES_MAX.saturating_sub(total));
        let own = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = own.saturating_add(bytes) <= most;
        if !fits {
            self.shrink(bytes);
            self.count_refused(what);
        }
        fits
    }

    /// Returns whether a small item may be added, which the caller then charges or counts.
    fn has_room(&self, what: AccountUse) -> bool {
        let total = self.all.bytes.load(Ordering::Relaxed);
        let most = what.bytes_max().min(BYTES_MAX.saturating_sub(total));
        let fits = self.bytes.load(Ordering::Relaxed) <= most;
        if !fits {
            self.count_refused(what);
        }
        fits
    }

    /// Adds one to a count of items of this account below `max`, if a small item may be added.
    pub(super) fn add_one(&self, count: &AtomicUsize, max: usize, what: AccountUse) -> bool {
        if !add_one(count, max) {
            return false;
        }
        let fits = self.has_room(what);
        if !fits {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        fits
    }

    /// Charges bytes without a check, after [`Account::add_one`].
    pub(super) fn charge(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn count_refused(&self, what: AccountUse) {
        if let Some(count) = self.all.refused.get(what as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes back `bytes` of a charge.
    pub fn shrink(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let own = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let total = self.all.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(own >= bytes && total >= bytes, "more is refunded than was charged");
    }

    /// Counts a connection.
    pub fn connect(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncounts a connection.
    pub fn disconnect(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts bytes that have a limit of their own, for display.
    pub fn add_beside(&self, bytes: usize) {
        self.beside.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Uncounts bytes of [`Account::add_beside`].
    pub fn remove_beside(&self, bytes: usize) {
        self.beside.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn held(&self) -> u64 {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let fixed = count(&self.leases) * LEASE_BYTES
            + count(&self.sessions) * SESSION_BYTES
            + count(&self.connections) * CONNECTION_BYTES;
        (count(&self.bytes) + count(&self.beside) + fixed) as u64
    }
}

impl AccountUse {
    fn bytes_max(self) -> usize {
        match self {
            AccountUse::Reports => USER_BYTES_MAX / 4,
            AccountUse::PendingRequests => USER_BYTES_MAX / 2,
            AccountUse::Buffers | AccountUse::Sessions | AccountUse::Leases => USER_BYTES_MAX,
        }
    }
}

/// Adds one to a count below `max`; otherwise returns false.
pub(super) fn add_one(count: &AtomicUsize, max: usize) -> bool {
    let fits = count.fetch_add(1, Ordering::Relaxed) < max;
    if !fits {
        count.fetch_sub(1, Ordering::Relaxed);
    }
    fits
}

/// Maximum bytes of one user: enough for 200 unread replies or 1 000 frames of the largest size.
pub(super) const USER_BYTES_MAX: usize = 16 << 20;

pub(super) const BYTES_MAX: usize = 64 << 20;

/// Bytes of a lease with its places in its session and in the order of ends.
pub(super) const LEASE_BYTES: usize = 88;

/// Bytes of a session: its entries in the table and the pool, its signals and the watch over its process.
pub(super) const SESSION_BYTES: usize = 3 << 10;

/// Bytes of an idle connection: its task, its buffers and the kernel's socket.
pub(super) const CONNECTION_BYTES: usize = 16 << 10;
