//! Shares the time of one thread by user: deficit round robin over users, then over the connections of each.
//!
//! tokio runs ready tasks first in, first out, so a user with 900 busy connections would have 900 batches for each
//! batch of another user. Before each batch a connection calls [`QueueMembership::admit`]; in
//! [`QueueMembership::run_in_turn`] each poll is a batch. While its user has used less than a quantum of the current
//! round, it goes on at once; otherwise it waits for a later round. A round ends when each task that was ready at its
//! start has run.
//!
//! As long as the thread serves one user, admission costs one comparison.

use std::collections::{HashMap, VecDeque};
use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::ready;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, Timestamp};

/// The users of one thread and their waiting connections.
#[derive(Debug)]
pub struct FairQueue {
    clock: Arc<Clock>,
    /// The number of connected users. Kept beside `state` so that a single user takes no lock.
    user_count: AtomicUsize,
    state: Mutex<QueueState>,
    /// Notified when a connection waits: rounds begin until none waits.
    round_wanted: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    users: HashMap<u32, UserQueue>,
    round: u64,
    /// The user of the batch in progress and when it began. `None` while the thread sleeps.
    running: Option<(u32, Timestamp)>,
}

#[derive(Debug, Default)]
struct UserQueue {
    connections: usize,
    /// The last round in which it ran, and the time that it used in it.
    round: u64,
    used: Duration,
    /// Closed ones were given up.
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// One connection's membership in the queue, ended by its drop.
#[derive(Debug)]
pub struct QueueMembership {
    queue: Arc<FairQueue>,
    user: u32,
}

impl FairQueue {
    pub fn new(clock: Arc<Clock>) -> FairQueue {
        FairQueue {
            clock,
            user_count: AtomicUsize::new(0),
            state: Mutex::default(),
            round_wanted: Notify::new(),
        }
    }

    #[must_use]
    pub fn join(self: &Arc<FairQueue>, user: u32) -> QueueMembership {
        let mut state = self.state.lock();
        state.users.entry(user).or_default().connections += 1;
        self.user_count.store(state.users.len(), Ordering::Relaxed);
        // Running time is not recorded while there is one user.
        state.running = None;
        drop(state);
        QueueMembership { queue: Arc::clone(self), user }
    }

    /// Ends the round because the thread is about to sleep: the time until the next batch is charged to no user.
    pub fn sleep(&self) {
        if self.serves_one_user() {
            return;
        }
        let mut state = self.state.lock();
        state.round += 1;
        state.running = None;
    }

    /// Begins rounds for as long as the runtime lives. Yields in between, so that each ready task runs once a round.
    pub async fn begin_rounds(self: Arc<FairQueue>) {
        loop {
            self.round_wanted.notified().await;
            while self.begin_round() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Wakes one waiting connection of each user, which wakes the next when it is admitted. Returns whether any waited.
    fn begin_round(&self) -> bool {
        let mut state = self.state.lock();
        state.round += 1;
        let mut any_waited = false;
        for user in state.users.values_mut() {
            any_waited |= user.wake_next();
        }
        any_waited
    }

    fn serves_one_user(&self) -> bool {
        self.user_count.load(Ordering::Relaxed) <= 1
    }
}

impl QueueState {
    /// Counts the time since the last batch began as used by its user.
    fn charge_running(&mut self, now: Timestamp) {
        if let Some((user, began)) = self.running.take()
            && let Some(user) = self.users.get_mut(&user)
        {
            user.enter_round(self.round);
            user.used += now.since(began);
        }
    }
}

impl UserQueue {
    fn enter_round(&mut self, round: u64) {
        if self.round != round {
            self.round = round;
            self.used = Duration::ZERO;
        }
    }

    fn wake_next(&mut self) -> bool {
        while let Some(next) = self.waiting.pop_front() {
            if next.send(()).is_ok() {
                return true;
            }
        }
        false
    }
}

impl QueueMembership {
    /// Waits until this connection may answer one batch.
    pub async fn admit(&self) {
        self.run_in_turn(ready(())).await;
    }

    /// Runs a future of this connection, each poll as a batch.
    pub async fn run_in_turn<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut turn: Option<oneshot::Receiver<()>> = None;
        poll_fn(|context| {
            while !self.queue.serves_one_user() || turn.is_some() {
                if let Some(turn) = &mut turn {
                    // The queue lives as long as its members, and drops no turn that is awaited.
                    let _ = ready!(Pin::new(turn).poll(context));
                }
                turn = self.begin_batch(turn.is_some());
                if turn.is_none() {
                    break;
                }
                self.queue.round_wanted.notify_one();
            }
            future.as_mut().poll(context)
        })
        .await
    }

    /// Begins a batch if the user's quantum is not used up; otherwise queues the connection, in front if it `waited`, and
    /// returns its turn.
    fn begin_batch(&self, waited: bool) -> Option<oneshot::Receiver<()>> {
        let now = self.queue.clock.now().at;
        let mut state = self.queue.state.lock();
        state.charge_running(now);
        let round = state.round;
        let user = state.users.get_mut(&self.user)?;
        user.enter_round(round);
        // A connection that has just become ready does not overtake those that wait.
        if user.used < QUANTUM && (waited || user.waiting.is_empty()) {
            user.wake_next();
            state.running = Some((self.user, now));
            return None;
        }
        // Those that were given up would add up.
        if user.waiting.len() == user.waiting.capacity() {
            user.waiting.retain(|turn| !turn.is_closed());
        }
        let (wake, turn) = oneshot::channel();
        if waited {
            user.waiting.push_front(wake);
        } else {
            user.waiting.push_back(wake);
        }
        Some(turn)
    }
}

impl Drop for QueueMembership {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let Some(user) = state.users.get_mut(&self.user) else { return };
        user.connections -= 1;
        // A connection that closes while it waits, as at the end of the runtime, leaves an entry that wakes no task.
        if user.connections == 0 {
            state.users.remove(&self.user);
        }
        self.queue.user_count.store(state.users.len(), Ordering::Relaxed);
    }
}

/// The time of one user in one round: about five batches of 64 small frames.
const QUANTUM: Duration = Duration::from_micros(250);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tokio::runtime::Runtime;

    use super::{FairQueue, QueueMembership};
    use crate::clock::Clock;

    /// Spends 100 µs, like a batch.
    fn spend_batch(clock: &Clock) {
        let began = clock.now().at;
        while clock.now().at.since(began) < Duration::from_micros(100) {}
    }

    fn new_queue() -> (Arc<Clock>, Arc<FairQueue>) {
        let clock = Arc::new(Clock::start());
        (Arc::clone(&clock), Arc::new(FairQueue::new(clock)))
    }

    /// A queue, and the runtime of its rounds.
    fn started() -> (Arc<Clock>, Arc<FairQueue>, Runtime) {
        let (clock, queue) = new_queue();
        let sleeping = Arc::clone(&queue);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.on_thread_park(move || sleeping.sleep()).build().unwrap();
        runtime.spawn(Arc::clone(&queue).begin_rounds());
        (clock, queue, runtime)
    }

    /// Counts the batches of a connection that is always busy.
    async fn stay_busy(seat: Option<QueueMembership>, clock: Arc<Clock>, batches: Arc<AtomicU64>) {
        loop {
            if let Some(seat) = &seat {
                seat.admit().await;
            }
            spend_batch(&clock);
            batches.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn shares_time_by_user_not_by_connection() {
        let (clock, queue, runtime) = started();
        let batches = Arc::<AtomicU64>::default();
        for _ in 0..200 {
            runtime.spawn(stay_busy(Some(queue.join(1)), Arc::clone(&clock), Arc::clone(&batches)));
        }
        let seat = queue.join(2);
        let mut between = runtime.block_on(async {
            let mut between = Vec::new();
            for _ in 0..50 {
                tokio::task::yield_now().await;
                let before = batches.load(Ordering::Relaxed);
                seat.admit().await;
                spend_batch(&clock);
                // Until this task runs again, other connections run their batches.
                tokio::task::yield_now().await;
                between.push(batches.load(Ordering::Relaxed) - before);
            }
            between
        });
        between.sort_unstable();
        // Two quanta of two or three batches each; rotation over connections would give 400.
        assert!(between[25] <= 20, "{between:?}");
        assert!(batches.load(Ordering::Relaxed) > 50, "the other user has its share");
    }

    #[test]
    fn wakes_connections_of_a_user_one_at_a_time() {
        let (clock, queue) = new_queue();
        let [first, second, third, late] = [(); 4].map(|()| queue.join(1));
        let _other = queue.join(2);
        let waiting = || queue.state.lock().users[&1].waiting.len();
        assert!(first.begin_batch(false).is_none());
        (0..3).for_each(|_| spend_batch(&clock));
        let turns = [second.begin_batch(false), third.begin_batch(false)];
        assert!(turns.iter().all(Option::is_some), "the quantum is used up");
        assert!(queue.begin_round());
        assert_eq!(waiting(), 1, "one is woken");
        let turn = late.begin_batch(false);
        assert!(turn.is_some(), "it does not overtake those that wait");
        assert!(second.begin_batch(true).is_none());
        assert_eq!(waiting(), 1, "the next one is woken");
    }

    #[test]
    fn forgets_turns_that_are_given_up() {
        let (clock, queue) = new_queue();
        let [first, second, _other] = [1, 1, 2].map(|user| queue.join(user));
        assert!(first.begin_batch(false).is_none());
        (0..3).for_each(|_| spend_batch(&clock));
        for _ in 0..1_000 {
            assert!(first.begin_batch(false).is_some());
        }
        let mut turn = second.begin_batch(false).unwrap();
        assert!(queue.state.lock().users[&1].waiting.len() < 10, "none of them is kept");
        assert!(queue.begin_round());
        assert_eq!(turn.try_recv(), Ok(()), "the one that waits is woken");
    }

    /// The tasks of a connection that do not ask before each batch, as those of a library.
    #[test]
    fn runs_futures_in_turn() {
        let (clock, queue, runtime) = started();
        let batches = Arc::<AtomicU64>::default();
        for _ in 0..200 {
            let endless = stay_busy(None, Arc::clone(&clock), Arc::clone(&batches));
            let seat = queue.join(1);
            runtime.spawn(async move { seat.run_in_turn(endless).await });
        }
        let seat = queue.join(2);
        let passes = seat.run_in_turn(async {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        });
        runtime.block_on(passes);
        let batches = batches.load(Ordering::Relaxed);
        // Some batches in each of 50 rounds; rotation over connections would give 10 000.
        assert!((50..=1_000).contains(&batches), "{batches}");
    }

    #[test]
    fn rotates_connections_of_a_user() {
        let (clock, queue, runtime) = started();
        let batches: [Arc<AtomicU64>; 20] = Default::default();
        for batches in &batches {
            runtime.spawn(stay_busy(Some(queue.join(1)), Arc::clone(&clock), Arc::clone(batches)));
        }
        let _other = queue.join(2);
        let count = || batches.iter().map(|of_one| of_one.load(Ordering::Relaxed)).collect::<Vec<_>>();
        runtime.block_on(async {
            while count().iter().sum::<u64>() < 400 {
                tokio::task::yield_now().await;
            }
        });
        let (least, most) = (count().into_iter().min(), count().into_iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| least > 0 && most <= 2 * least), "{:?}", count());
    }
}
