//! Health of the serving threads: each runs a self-check several times a second and records the time. Self-checks are not
//! counted and change nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::{Clock, Now, Timestamp};
use crate::engine::{Decider, Descriptors, Op, Request};

/// The time of each thread's last self-check, for the service manager's watchdog and for `/readyz`.
#[derive(Debug)]
pub struct ThreadHealth {
    /// The decision threads by number, then the accepting thread. Nanoseconds plus 1; 0 before the first check.
    checks: Box<[AtomicU64]>,
    /// Wakes the decision threads, by number. They have no timers of their own, as a runtime with a timer reads the clock
    /// whenever it waits.
    wakes: Box<[Notify]>,
    /// The number of threads before their first check.
    silent: AtomicUsize,
    all_checked: Notify,
}

impl ThreadHealth {
    /// Makes the health of a server with this number of decision threads.
    #[must_use]
    pub fn new(threads: usize) -> ThreadHealth {
        let checks: Box<[AtomicU64]> = (0..=threads.max(1)).map(|_| AtomicU64::new(0)).collect();
        let wakes = (0..threads.max(1)).map(|_| Notify::new()).collect();
        ThreadHealth { silent: AtomicUsize::new(checks.len()), checks, wakes, all_checked: Notify::new() }
    }

    /// Returns the name of each thread and the age of its last self-check, `None` before the first. Decision threads come
    /// first, by number, then the accepting thread.
    pub fn check_ages(&self, now: Timestamp) -> impl Iterator<Item = (String, Option<Duration>)> {
        let accepting = self.checks.len() - 1;
        self.checks.iter().enumerate().map(move |(number, check)| {
            let name = if number == accepting { ACCEPTING.to_owned() } else { thread_name(number) };
            (name, read_check(check).map(|at| now.since(at)))
        })
    }

    /// Whether every thread has run its self-check after a moment.
    #[must_use]
    pub fn all_checked_after(&self, moment: Timestamp) -> bool {
        self.checks.iter().all(|check| read_check(check) > Some(moment))
    }

    /// Waits until every thread has run its self-check once: the server is ready. For one waiter.
    pub async fn wait_until_serving(&self) {
        while self.silent.load(Ordering::SeqCst) > 0 {
            self.all_checked.notified().await;
        }
    }

    /// Marks the decision threads from this number on as not started.
    pub(super) fn mark_not_started(&self, from: usize) {
        (from..self.wakes.len()).for_each(|number| self.check(number, NEVER_STARTED));
    }

    /// Returns the number of running decision threads and the number wanted.
    #[must_use]
    pub fn thread_counts(&self) -> (usize, usize) {
        let not_started =
            |number: &usize| self.checks.get(*number).and_then(read_check) == Some(NEVER_STARTED);
        let wanted = self.wakes.len();
        (wanted - (0..wanted).filter(not_started).count(), wanted)
    }

    /// Records the check of the accepting thread, and wakes the decision threads for theirs. Called several times a
    /// second.
    pub(super) fn beat_accepting(&self, now: Timestamp) {
        self.wakes.iter().for_each(Notify::notify_one);
        self.check(self.checks.len() - 1, now);
    }

    async fn wake(&self, number: usize) {
        match self.wakes.get(number) {
            Some(wake) => wake.notified().await,
            None => std::future::pending().await,
        }
    }

    fn check(&self, number: usize, now: Timestamp) {
        let Some(check) = self.checks.get(number) else { return };
        // Each beat has one writer.
        if check.swap(now.as_nanos().saturating_add(1), Ordering::SeqCst) == 0
            && self.silent.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.all_checked.notify_one();
        }
    }
}

/// Runs the self-checks of a decision thread until its runtime ends. They need the same locks as its connections.
pub(super) async fn run_self_checks(
    number: usize,
    pulse: Arc<ThreadHealth>,
    clock: Arc<Clock>,
    decider: Arc<Mutex<Decider>>,
) {
    loop {
        let now = clock.now();
        check_decider(&decider, now);
        pulse.check(number, now.at);
        pulse.wake(number).await;
    }
}

fn check_decider(decider: &Mutex<Decider>, now: Now) {
    let mut decider = decider.lock();
    // PEEK counts nothing, and no rule matches: the name of a domain cannot have a slash.
    let request = Request::new(Op::Peek, "tidegate/self-test", Descriptors::from_attributes(&[]));
    let _ = decider.decide(&request, now);
}

/// The beat of a thread that was not started: later than any moment.
const NEVER_STARTED: Timestamp = Timestamp::from_nanos(u64::MAX - 1);

fn read_check(check: &AtomicU64) -> Option<Timestamp> {
    check.load(Ordering::SeqCst).checked_sub(1).map(Timestamp::from_nanos)
}

/// Returns the name of a decision thread.
pub(super) fn thread_name(number: usize) -> String {
    format!("decide-{number}")
}

/// The name of the accepting thread.
const ACCEPTING: &str = "accept";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ThreadHealth;
    use crate::clock::Timestamp;

    #[test]
    fn is_healthy_only_while_every_thread_beats() {
        let pulse = ThreadHealth::new(2);
        let at = |nanos| Timestamp::from_nanos(nanos);
        assert!(!pulse.all_checked_after(Timestamp::ORIGIN));
        pulse.check(0, at(0));
        pulse.check(1, at(5));
        assert!(!pulse.all_checked_after(Timestamp::ORIGIN), "one thread has not beaten yet");
        pulse.beat_accepting(at(7));
        pulse.check(0, at(6));
        assert!(pulse.all_checked_after(at(4)));
        assert!(!pulse.all_checked_after(at(5)), "one thread has not beaten since");
        let ages: Vec<_> = pulse.check_ages(at(10)).collect();
        let nanos = |name: &str, nanos| (name.to_owned(), Some(Duration::from_nanos(nanos)));
        assert_eq!(ages, [nanos("decide-0", 4), nanos("decide-1", 5), nanos("accept", 3)]);
    }

    #[test]
    fn ignores_threads_that_were_not_started() {
        let pulse = ThreadHealth::new(3);
        assert_eq!(pulse.thread_counts(), (3, 3));
        pulse.mark_not_started(1);
        pulse.check(0, Timestamp::from_nanos(5));
        pulse.beat_accepting(Timestamp::from_nanos(5));
        assert!(pulse.all_checked_after(Timestamp::from_nanos(4)));
        assert!(pulse.check_ages(Timestamp::from_nanos(5)).all(|(_, age)| age == Some(Duration::ZERO)));
        assert_eq!(pulse.thread_counts(), (1, 3));
    }

    #[tokio::test]
    async fn is_serving_after_every_thread_has_beaten() {
        let pulse = ThreadHealth::new(1);
        pulse.check(0, Timestamp::ORIGIN);
        pulse.check(0, Timestamp::ORIGIN);
        let waited = tokio::time::timeout(Duration::from_millis(5), pulse.wait_until_serving()).await;
        assert!(waited.is_err());
        pulse.beat_accepting(Timestamp::ORIGIN);
        pulse.wait_until_serving().await;
    }
}
