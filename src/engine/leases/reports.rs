//! Abandoned requests of one session that may yet be granted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::engine::ledger::{Account, AccountUse};

/// The reports of a session, oldest first. Their bytes are charged to its user.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{REMEMBERED, REPORTS_MAX, Reports};
    use crate::clock::Timestamp;
    use crate::engine::ledger::{AccountUse, MemoryLedger, USER_BYTES_MAX};

    #[test]
    fn keeps_latest_reports_and_frees_expired_ones() {
        let ledger = MemoryLedger::default();
        let mut reports = Reports::new(ledger.account(1));
        for request in 0..5_000 {
            reports.remember(1, request, Timestamp::ORIGIN);
        }
        assert_eq!(reports.reports.len(), REPORTS_MAX);
        assert!(reports.reports.capacity() * 24 <= reports.charged, "all that is allocated is charged");
        assert!(reports.take(1, 4_999, Timestamp::ORIGIN) && !reports.take(1, 4_999, Timestamp::ORIGIN));
        assert!(!reports.take(1, 3, Timestamp::ORIGIN), "the oldest gave way");
        reports.forget_old(Timestamp::ORIGIN.after(REMEMBERED - Duration::from_nanos(1)));
        assert!(ledger.held().total > 0);
        reports.forget_old(Timestamp::ORIGIN.after(REMEMBERED));
        assert_eq!((ledger.held().total, reports.reports.capacity()), (0, 0));
    }

    #[test]
    fn full_account_bounds_reports_of_all_sessions() {
        let ledger = MemoryLedger::default();
        let mut sessions: Vec<_> = (0..1_000).map(|_| Reports::new(ledger.account(1))).collect();
        for reports in &mut sessions {
            (0..REPORTS_MAX as u64).for_each(|request| reports.remember(1, request, Timestamp::ORIGIN));
        }
        assert!(ledger.held().total <= USER_BYTES_MAX as u64 / 4);
        assert!(ledger.account(1).grow(AccountUse::Buffers, USER_BYTES_MAX / 2));
        // A session with reports keeps replacing its oldest.
        assert!(sessions[0].take(1, 1_023, Timestamp::ORIGIN));
        drop(sessions);
        assert_eq!(ledger.held().total, USER_BYTES_MAX as u64 / 2);
    }
}
