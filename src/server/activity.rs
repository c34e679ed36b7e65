//! Whether a connection works, rests or is to end: one word, so that its task and the thread that lets connections in never
//! both write to its socket. It writes nothing itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Timestamp;

/// `WORKING`, `ENDING`, or the moment plus one since which the connection rests.
#[derive(Debug, Default)]
pub(super) struct Activity(AtomicU64);

impl Activity {
    /// The connection has answered everything and waits for requests. Called by its task.
    pub(super) fn rest(&self, since: Timestamp) {
        let since = since.as_nanos().saturating_add(1).min(ENDING - 1);
        // Nobody ends a connection that works.
        self.0.store(since, Ordering::Release);
    }

    /// The connection is about to read. Called by its task. Returns false if the connection is to end instead.
    #[must_use]
    pub(super) fn work(&self) -> bool {
        let now = self.0.load(Ordering::Acquire);
        now == WORKING || (now != ENDING && self.exchange(now, WORKING))
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Since when the connection rests.
    pub(super) fn resting_since(&self) -> Option<Timestamp> {
        let since = self.0.load(Ordering::Acquire);
        (since != WORKING && since != ENDING).then(|| Timestamp::from_nanos(since - 1))
    }

    /// Ends the connection if it has rested for `least`. If so, its task reads and writes no more.
    #[must_use]
    pub(super) fn end_if_resting(&self, least: Duration, now: Timestamp) -> bool {
        let Some(since) = self.resting_since().filter(|since| now.since(*since) >= least) else {
            return false;
        };
        let resting = since.as_nanos() + 1;
        self.exchange(resting, ENDING)
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
    fn ends_only_what_rests_long_enough() {
        let (activity, second) = (Activity::default(), Duration::from_secs(1));
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        assert!(!activity.end_if_resting(second, at(9)), "it works");
        activity.rest(at(8));
        assert_eq!(activity.resting_since(), Some(at(8)));
        assert!(!activity.end_if_resting(2 * second, at(9)), "not for long");
        assert!(activity.work());
        assert!(!activity.end_if_resting(second, at(20)), "it works again");
        activity.rest(at(10));
        assert!(activity.end_if_resting(second, at(12)));
        assert!(!activity.work(), "its task does not read any more");
        assert!(!activity.end_if_resting(second, at(20)), "once");
    }
}
