//! Bytes that callers make the daemon hold beside the tables, by user: one account each.
//!
//! What has no bound of its own is charged here before it grows. A user may hold [`USER_BYTES_MAX`], and never more than is
//! free: the more users fill their accounts, the less each may add, so that room is left for another.

use std::collections::HashMap;
use std::sync::Arc;

use super::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// The accounts of all users.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: Mutex<HashMap<u32, Arc<Account>>>,
    all: Arc<All>,
}

/// What all accounts come to.
#[derive(Debug, Default)]
struct All {
    bytes: AtomicUsize,
    /// How often an account was too full, by use.
    refused: [AtomicU64; Use::ALL.len()],
}

/// What one user makes the daemon hold. All connections and sessions of a user share it.
#[derive(Debug, Default)]
pub struct Account {
    /// What is charged.
    bytes: AtomicUsize,
    all: Arc<All>,
    pub(super) leases: AtomicUsize,
    pub(super) sessions: AtomicUsize,
    connections: AtomicUsize,
}

/// What an account is charged for. What can be done without finds the account full first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reports of requests that were given up on.
    Reports,
    /// Requests that wait for a remote check.
    Waits,
    /// Large frames and unread replies.
    Buffers,
    /// A session more.
    Sessions,
    /// A lease more, and what ends with it.
    Leases,
}

/// Bytes held for callers beside the tables, by estimate where something has a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBytes {
    /// For all users.
    pub total: u64,
    /// For the user with the most.
    pub largest_user: u64,
    /// How often an account was too full, by use.
    pub refused: [(&'static str, u64); Use::ALL.len()],
}

impl Ledger {
    /// The account of a user.
    pub(super) fn account(&self, user: u32) -> Arc<Account> {
        let mut accounts = self.accounts.lock();
        let open = || Arc::new(Account { all: Arc::clone(&self.all), ..Account::default() });
        Arc::clone(accounts.entry(user).or_insert_with(open))
    }

    /// Forgets users that hold nothing and have no session or connection.
    pub(super) fn forget_users(&self) {
        self.accounts.lock().retain(|_, account| Arc::strong_count(account) > 1);
    }

    pub(super) fn held(&self) -> HeldBytes {
        let accounts = self.accounts.lock();
        let held = || accounts.values().map(|account| account.held());
        HeldBytes {
            total: held().sum(),
            largest_user: held().max().unwrap_or_default(),
            refused: Use::ALL.map(|what| (what.name(), self.all.refused(what).load(Ordering::Relaxed))),
        }
    }
}

impl Account {
    /// Charges so many bytes more, if they may be held. Otherwise nothing changes.
    #[must_use]
    pub fn grow(&self, what: Use, bytes: usize) -> bool {
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

    /// Whether something of a small size may be added, which [`Account::charge`] then charges.
    #[must_use]
    pub(super) fn has_room(&self, what: Use) -> bool {
        let total = self.all.bytes.load(Ordering::Relaxed);
        let most = what.bytes_max().min(BYTES_MAX.saturating_sub(total));
        let fits = self.bytes.load(Ordering::Relaxed) <= most;
        if !fits {
            self.count_refused(what);
        }
        fits
    }

    /// Charges what was found to have room.
    pub(super) fn charge(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    #[cold]
    fn count_refused(&self, what: Use) {
        self.all.refused(what).fetch_add(1, Ordering::Relaxed);
    }

    /// Takes so many bytes off that were charged.
    pub fn shrink(&self, bytes: usize) {
        let own = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let total = self.all.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(own >= bytes && total >= bytes, "more is given back than was charged");
    }

    /// Notes a connection more.
    pub fn connect(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a connection less.
    pub fn disconnect(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn held(&self) -> u64 {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let fixed = count(&self.leases) * LEASE_BYTES
            + count(&self.sessions) * SESSION_BYTES
            + count(&self.connections) * CONNECTION_BYTES;
        (count(&self.bytes) + fixed) as u64
    }
}

impl All {
    fn refused(&self, what: Use) -> &AtomicU64 {
        let [reports, waits, buffers, sessions, leases] = &self.refused;
        match what {
            Use::Reports => reports,
            Use::Waits => waits,
            Use::Buffers => buffers,
            Use::Sessions => sessions,
            Use::Leases => leases,
        }
    }
}

impl Use {
    const ALL: [Use; 5] = [Use::Reports, Use::Waits, Use::Buffers, Use::Sessions, Use::Leases];

    fn bytes_max(self) -> usize {
        match self {
            Use::Reports => USER_BYTES_MAX / 4,
            Use::Waits => USER_BYTES_MAX / 2,
            Use::Buffers | Use::Sessions | Use::Leases => USER_BYTES_MAX,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Use::Reports => "reports",
            Use::Waits => "waits",
            Use::Buffers => "buffers",
            Use::Sessions => "sessions",
            Use::Leases => "leases",
        }
    }
}

/// What one user may be charged: two hundred peers that do not read their replies, a thousand that each send the largest
/// frame.
pub(super) const USER_BYTES_MAX: usize = 16 << 20;

/// What all users may be charged.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// A lease, with its place in its session and on the wheel.
pub(super) const LEASE_BYTES: usize = 88;

/// A session: its place in the book and in its pool, the signals that it pushes, and the watch over its process.
pub(super) const SESSION_BYTES: usize = 3 << 10;

/// A connection at rest: its task, its buffers, and what the kernel keeps of its socket.
pub(super) const CONNECTION_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::{BYTES_MAX, Ledger, USER_BYTES_MAX, Use};

    #[test]
    fn each_user_has_an_account_and_what_is_given_back_can_be_charged_again() {
        let ledger = Ledger::default();
        let (one, other) = (ledger.account(1), ledger.account(2));
        assert!(one.grow(Use::Buffers, USER_BYTES_MAX));
        assert!(!one.grow(Use::Buffers, 1), "no more for this user");
        assert!(other.grow(Use::Buffers, USER_BYTES_MAX), "another user has as much");
        one.shrink(10);
        assert!(ledger.account(1).grow(Use::Buffers, 10) && !one.grow(Use::Buffers, 1));
        assert_eq!(ledger.held().total, 2 * USER_BYTES_MAX as u64);
        drop((one, other));
        ledger.forget_users();
        assert_eq!(ledger.held().total, 0);
    }

    #[test]
    fn uses_that_can_be_done_without_leave_room_for_others() {
        let account = Ledger::default().account(1);
        assert!(account.grow(Use::Reports, USER_BYTES_MAX / 4) && !account.grow(Use::Reports, 1));
        assert!(account.grow(Use::Waits, USER_BYTES_MAX / 4) && !account.grow(Use::Waits, 1));
        assert!(account.grow(Use::Buffers, USER_BYTES_MAX / 2) && !account.grow(Use::Buffers, 1));
    }

    #[test]
    fn many_greedy_users_leave_room_for_one_more() {
        let ledger = Ledger::default();
        let greedy: Vec<_> = (0..100).map(|user| ledger.account(user)).collect();
        for account in &greedy {
            while account.grow(Use::Buffers, 4 << 10) {}
        }
        let held = ledger.held();
        assert!(held.total <= BYTES_MAX as u64 && held.largest_user == USER_BYTES_MAX as u64, "{held:?}");
        // By then each new user has half of what is left, down to a block.
        assert!(held.total > BYTES_MAX as u64 - (64 << 10), "{held:?}");
        greedy[0].shrink(USER_BYTES_MAX);
        assert!(ledger.account(100).grow(Use::Buffers, USER_BYTES_MAX / 2));
    }
}
