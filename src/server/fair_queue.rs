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
