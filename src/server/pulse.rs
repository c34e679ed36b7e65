//! Whether every thread that serves still does: each judges a question of its own several times a second and notes when.
//! Nothing is counted or changed by it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Now, Timestamp};
use crate::engine::{Decider, Descriptors, Op, Request};

/// When each thread last did its work. Read by who tells a service manager, or whoever asks, that all is well.
#[derive(Debug)]
pub struct Pulse {
    /// The decision threads by number, and the one that lets connections in. Nanoseconds, plus 1; 0 is never.
    beats: Box<[AtomicU64]>,
    /// Wakes the decision threads, by number. Who has a timer of his own looks at the clock whenever he waits: a decision
    /// thread has none, and pays for none.
    wakes: Box<[Notify]>,
    /// So many have yet to beat for the first time.
    silent: AtomicUsize,
    all_beat: Notify,
}

impl Pulse {
    /// Of a server with so many decision threads.
    #[must_use]
    pub fn new(threads: usize) -> Pulse {
        let beats: Box<[AtomicU64]> = (0..=threads.max(1)).map(|_| AtomicU64::new(0)).collect();
        let wakes = (0..threads.max(1)).map(|_| Notify::new()).collect();
        Pulse { silent: AtomicUsize::new(beats.len()), beats, wakes, all_beat: Notify::new() }
    }

    /// The name of each thread, and how long ago it last judged its question; `None`: it has yet to. Decision threads
    /// come first, in the order of their numbers, then the thread that lets connections in.
    pub fn ages(&self, now: Timestamp) -> impl Iterator<Item = (String, Option<Duration>)> {
        let accepting = self.beats.len() - 1;
        self.beats.iter().enumerate().map(move |(number, beat)| {
            let name = if number == accepting { ACCEPTING.to_owned() } else { thread_name(number) };
            (name, beat_at(beat).map(|at| now.since(at)))
        })
    }

    /// Whether every thread has judged its question after a moment.
    #[must_use]
    pub fn all_beat_after(&self, moment: Timestamp) -> bool {
        self.beats.iter().all(|beat| beat_at(beat) > Some(moment))
    }

    /// Waits until every thread has judged its question once: the server serves. For one waiter.
    pub async fn serving(&self) {
        while self.silent.load(Ordering::SeqCst) > 0 {
            self.all_beat.notified().await;
        }
    }

    /// The decision threads from this number on were never started.
    pub(super) fn go_without(&self, from: usize) {
        (from..self.wakes.len()).for_each(|number| self.beat(number, NEVER_STARTED));
    }

    /// How many decision threads run, and how many were to.
    #[must_use]
    pub fn started(&self) -> (usize, usize) {
        let never = |number: &usize| self.beats.get(*number).and_then(beat_at) == Some(NEVER_STARTED);
        let wanted = self.wakes.len();
        (wanted - (0..wanted).filter(never).count(), wanted)
    }

    /// The thread that lets connections in is there, and wakes the others to see whether they are. Called several times a
    /// second.
    pub(super) fn beat_accepting(&self, now: Timestamp) {
        self.wakes.iter().for_each(Notify::notify_one);
        self.beat(self.beats.len() - 1, now);
    }

    async fn wake(&self, number: usize) {
        match self.wakes.get(number) {
            Some(wake) => wake.notified().await,
            None => std::future::pending().await,
        }
    }

    fn beat(&self, number: usize, now: Timestamp) {
        let Some(beat) = self.beats.get(number) else { return };
        // One writer for each.
        if beat.swap(now.as_nanos().saturating_add(1), Ordering::SeqCst) == 0
            && self.silent.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.all_beat.notify_one();
        }
    }
}

/// Has a decision thread ask its own decider, until its runtime ends: what its connections wait for, it waits for.
pub(super) async fn keep_beating(
    number: usize,
    pulse: Arc<Pulse>,
    clock: Arc<Clock>,
    decider: Arc<Mutex<Decider>>,
) {
    loop {
        let now = clock.now();
        judge_something(&decider, now);
        pulse.beat(number, now.at);
        pulse.wake(number).await;
    }
}

fn judge_something(decider: &Mutex<Decider>, now: Now) {
    let mut decider = decider.lock().unwrap_or_else(PoisonError::into_inner);
    // PEEK counts nothing, and no rule is for this domain: a name with a slash cannot be one.
    let request = Request::new(Op::Peek, "tidegate/self-test", Descriptors::one(&[]));
    let _ = decider.decide(&request, now);
}

/// The beat of a thread that was never started: younger than any question.
const NEVER_STARTED: Timestamp = Timestamp::from_nanos(u64::MAX - 1);

fn beat_at(beat: &AtomicU64) -> Option<Timestamp> {
    beat.load(Ordering::SeqCst).checked_sub(1).map(Timestamp::from_nanos)
}

/// What a decision thread is called.
pub(super) fn thread_name(number: usize) -> String {
    format!("decide-{number}")
}

/// What the thread that lets connections in is called here.
const ACCEPTING: &str = "accept";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pulse;
    use crate::clock::Timestamp;

    #[test]
    fn all_is_well_only_while_every_thread_beats() {
        let pulse = Pulse::new(2);
        let at = |nanos| Timestamp::from_nanos(nanos);
        assert!(!pulse.all_beat_after(Timestamp::ORIGIN));
        pulse.beat(0, at(0));
        pulse.beat(1, at(5));
        assert!(!pulse.all_beat_after(Timestamp::ORIGIN), "one has yet to");
        pulse.beat_accepting(at(7));
        pulse.beat(0, at(6));
        assert!(pulse.all_beat_after(at(4)));
        assert!(!pulse.all_beat_after(at(5)), "one has not since");
        let ages: Vec<_> = pulse.ages(at(10)).collect();
        let nanos = |name: &str, nanos| (name.to_owned(), Some(Duration::from_nanos(nanos)));
        assert_eq!(ages, [nanos("decide-0", 4), nanos("decide-1", 5), nanos("accept", 3)]);
    }

    #[test]
    fn threads_that_were_never_started_are_not_waited_for() {
        let pulse = Pulse::new(3);
        assert_eq!(pulse.started(), (3, 3));
        pulse.go_without(1);
        pulse.beat(0, Timestamp::from_nanos(5));
        pulse.beat_accepting(Timestamp::from_nanos(5));
        assert!(pulse.all_beat_after(Timestamp::from_nanos(4)));
        assert!(pulse.ages(Timestamp::from_nanos(5)).all(|(_, age)| age == Some(Duration::ZERO)));
        assert_eq!(pulse.started(), (1, 3));
    }

    #[tokio::test]
    async fn it_serves_once_every_thread_has_beaten() {
        let pulse = Pulse::new(1);
        pulse.beat(0, Timestamp::ORIGIN);
        pulse.beat(0, Timestamp::ORIGIN);
        let waited = tokio::time::timeout(Duration::from_millis(5), pulse.serving()).await;
        assert!(waited.is_err());
        pulse.beat_accepting(Timestamp::ORIGIN);
        pulse.serving().await;
    }
}
