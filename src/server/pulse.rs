//! Health of the serving threads. A thread that waits for events is healthy, and is not woken. Each thread at work runs a
//! self-check several times a second, which is not counted and changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::{Clock, Now, Timestamp};
use crate::engine::{Decider, Descriptors, Op, Request};

/// The time of each thread's last self-check, for the service manager's watchdog and for `/readyz`.
#[derive(Debug)]
pub struct ThreadHealth {
    /// The decision threads by number, then the accepting thread.
    threads: Box<[ThreadPulse]>,
    /// The number of threads before their first check.
    silent: AtomicUsize,
    all_checked: Notify,
}

/// The health of one thread, on its own cache lines: decision threads write theirs whenever they wait.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadPulse {
    /// The last check in nanoseconds plus 1; 0 before the first.
    checked: AtomicU64,
    is_parked: AtomicBool,
    /// Wakes a decision thread for its check. It has no timer of its own, as a runtime with a timer reads the clock whenever
    /// it waits.
    wake: Notify,
}

impl ThreadHealth {
    pub fn new(threads: usize) -> ThreadHealth {
        let threads: Box<[ThreadPulse]> = (0..=threads.max(1)).map(|_| ThreadPulse::default()).collect();
        ThreadHealth { silent: AtomicUsize::new(threads.len()), threads, all_checked: Notify::new() }
    }

    /// Returns the name of each thread and the age of its last self-check, `None` before the first, zero while it waits for
    /// events. Decision threads come first, by number, then the accepting thread.
    pub fn check_ages(&self, now: Timestamp) -> impl Iterator<Item = (String, Option<Duration>)> {
        let accepting = self.accepting();
        self.threads.iter().enumerate().map(move |(number, thread)| {
            let name = if number == accepting { ACCEPTING.to_owned() } else { thread_name(number) };
            let age = thread.last_check().map(|at| now.since(at));
            (name, if thread.is_waiting() { Some(Duration::ZERO) } else { age })
        })
    }

    /// Whether every thread waits for events or has run its self-check after a moment.
    pub fn all_checked_after(&self, moment: Timestamp) -> bool {
        self.threads.iter().all(|thread| thread.is_waiting() || thread.last_check() > Some(moment))
    }

    /// Waits until every thread has run its self-check once: the server is ready. For one waiter.
    pub async fn wait_until_serving(&self) {
        while self.silent.load(Ordering::SeqCst) > 0 {
            self.all_checked.notified().await;
        }
    }

    /// Marks the decision threads from this number on as not started.
    pub(super) fn mark_not_started(&self, from: usize) {
        (from..self.accepting()).for_each(|number| self.check(number, NEVER_STARTED));
    }

    /// Returns the number of running decision threads and the number wanted.
    pub fn thread_counts(&self) -> (usize, usize) {
        let decision_threads = self.threads.iter().take(self.accepting());
        let not_started = decision_threads.filter(|thread| thread.last_check() == Some(NEVER_STARTED));
        (self.accepting() - not_started.count(), self.accepting())
    }

    /// Sets whether a decision thread waits for events. Called by the thread.
    pub(super) fn set_parked(&self, number: usize, is_parked: bool) {
        if let Some(thread) = self.threads.get(number) {
            thread.is_parked.store(is_parked, Ordering::Relaxed);
        }
    }

    /// Sets whether the accepting thread waits for events. Called by the thread.
    pub fn set_accepting_parked(&self, is_parked: bool) {
        self.set_parked(self.accepting(), is_parked);
    }

    /// Records the check of the accepting thread and of those that wait, and wakes the others for theirs. Called at each
    /// tick.
    pub(super) fn beat_accepting(&self, now: Timestamp) {
        for (number, thread) in self.threads.iter().enumerate() {
            if number == self.accepting() || thread.is_waiting() {
                self.check(number, now);
            } else {
                thread.wake.notify_one();
            }
        }
    }

    /// Wakes every decision thread for a self-check, by which it takes up the rules in force.
    pub fn wake_all(&self) {
        self.threads.iter().for_each(|thread| thread.wake.notify_one());
    }

    /// Returns the number of the accepting thread, which is that of decision threads.
    fn accepting(&self) -> usize {
        self.threads.len() - 1
    }

    async fn wake(&self, number: usize) {
        match self.threads.get(number) {
            Some(thread) => thread.wake.notified().await,
            None => std::future::pending().await,
        }
    }

    fn check(&self, number: usize, now: Timestamp) {
        let Some(thread) = self.threads.get(number) else { return };
        if thread.checked.swap(now.as_nanos().saturating_add(1), Ordering::SeqCst) == 0
            && self.silent.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.all_checked.notify_one();
        }
    }
}

impl ThreadPulse {
    fn last_check(&self) -> Option<Timestamp> {
        self.checked.load(Ordering::SeqCst).checked_sub(1).map(Timestamp::from_nanos)
    }

    /// Whether it waits for events, after its first check.
    fn is_waiting(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed) && self.last_check().is_some()
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

pub(super) fn thread_name(number: usize) -> String {
    format!("decide-{number}")
}

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
    fn counts_waiting_thread_as_healthy_until_it_works() {
        let pulse = ThreadHealth::new(1);
        let at = |nanos| Timestamp::from_nanos(nanos);
        pulse.beat_accepting(at(9));
        pulse.set_parked(0, true);
        assert!(!pulse.all_checked_after(at(1)), "it has not run its first check");
        assert_eq!(pulse.check_ages(at(9)).next().unwrap().1, None);
        pulse.check(0, at(2));
        assert!(pulse.all_checked_after(at(4)), "it waits");
        assert_eq!(pulse.check_ages(at(9)).next().unwrap().1, Some(Duration::ZERO));
        pulse.beat_accepting(at(12));
        pulse.set_parked(0, false);
        pulse.beat_accepting(at(15));
        assert!(!pulse.all_checked_after(at(12)), "it works, and has not run its check since");
        assert_eq!(pulse.check_ages(at(19)).next().unwrap().1, Some(Duration::from_nanos(7)));
        pulse.check(0, at(20));
        assert!(!pulse.all_checked_after(at(15)), "the accepting thread works");
        pulse.set_accepting_parked(true);
        assert!(pulse.all_checked_after(at(15)), "the accepting thread waits");
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
