//! Decisions that clients made without the daemon, as they report them, summed up for the log.

use std::time::Duration;

use parking_lot::Mutex;
use tracing::warn;

use crate::clock::Timestamp;
use crate::protocol;

/// The reports since the last log line. Their sum is logged at intervals, so that no client can fill the log.
#[derive(Debug, Default)]
pub(super) struct MissedReports {
    sums: Mutex<MissedSums>,
}

#[derive(Debug, Default)]
struct MissedSums {
    unlogged: protocol::MissedCounts,
    logged_at: Option<Timestamp>,
}

impl MissedReports {
    /// Adds a client's report.
    pub(super) fn add(&self, missed: &protocol::MissedCounts) {
        let mut sums = self.sums.lock();
        for (reason, more) in missed.iter() {
            let sum = sums.unlogged.count(reason).saturating_add(more);
            sums.unlogged.set(reason, sum);
        }
    }

    /// Logs the reports since the last line, at most every [`LOG_INTERVAL_MIN`].
    pub(super) fn log_if_due(&self, now: Timestamp) {
        let unlogged = {
            let mut sums = self.sums.lock();
            let due = sums.logged_at.is_none_or(|logged| now.since(logged) >= LOG_INTERVAL_MIN);
            if !due || sums.unlogged.is_empty() {
                return;
            }
            sums.logged_at = Some(now);
            std::mem::take(&mut sums.unlogged)
        };
        log(&unlogged);
    }

    /// Logs the reports since the last line at once.
    pub(super) fn log_now(&self) {
        let unlogged = std::mem::take(&mut self.sums.lock().unlogged);
        if !unlogged.is_empty() {
            log(&unlogged);
        }
    }
}

/// Writes the line. Called without the lock, which a decision may need.
fn log(missed: &protocol::MissedCounts) {
    let [unreachable, timeout, protocol, breaker, callback] =
        protocol::MissReason::ALL.map(|reason| missed.count(reason));
    warn!(
        unreachable,
        timeout, protocol, breaker, callback, "clients report decisions made without tidegate"
    );
}

const LOG_INTERVAL_MIN: Duration = Duration::from_secs(10);
