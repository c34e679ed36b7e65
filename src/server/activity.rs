//! Whether a connection is working, idle or ending: one atomic, so that its task and the accepting thread never both write
//! to its socket. This module does not write to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Timestamp;

/// `WORKING`, `ENDING`, or the start of idleness in nanoseconds plus one.
#[derive(Debug, Default)]
pub(super) struct Activity(AtomicU64);

impl Activity {
    /// Marks the connection idle: all requests are answered. Called by its task.
    pub(super) fn set_idle(&self, since: Timestamp) {
        let since = since.as_nanos().saturating_add(1).min(ENDING - 1);
        // No other thread changes the state of a working connection.
        self.0.store(since, Ordering::Release);
    }

    /// Marks the connection working, before it reads. Called by its task. Returns false if the connection must end.
    pub(super) fn set_working(&self) -> bool {
        let now = self.0.load(Ordering::Acquire);
        now == WORKING || (now != ENDING && self.exchange(now, WORKING))
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns the start of idleness; `None` while working or ending.
    pub(super) fn idle_since(&self) -> Option<Timestamp> {
        let since = self.0.load(Ordering::Acquire);
        (since != WORKING && since != ENDING).then(|| Timestamp::from_nanos(since - 1))
    }

    /// Marks the connection ending if it has been idle for `least`. Returns whether it was: its task then reads and
    /// writes no more.
    pub(super) fn end_if_idle(&self, least: Duration, now: Timestamp) -> bool {
        let Some(since) = self.idle_since().filter(|since| now.since(*since) >= least) else {
            return false;
        };
        let idle = since.as_nanos() + 1;
        self.exchange(idle, ENDING)
    }
}

const WORKING: u64 = 0;

const ENDING: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Activity;
    use crate::clock::Timestamp;

    #[test]
    fn ends_only_after_idle_time() {
        let (activity, second) = (Activity::default(), Duration::from_secs(1));
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        assert!(!activity.end_if_idle(second, at(9)), "it works");
        activity.set_idle(at(8));
        assert_eq!(activity.idle_since(), Some(at(8)));
        assert!(!activity.end_if_idle(2 * second, at(9)), "not for long");
        assert!(activity.set_working());
        assert!(!activity.end_if_idle(second, at(20)), "it works again");
        activity.set_idle(at(10));
        assert!(activity.end_if_idle(second, at(12)));
        assert!(!activity.set_working(), "its task does not read any more");
        assert!(!activity.end_if_idle(second, at(20)), "once");
    }
}
