//! Requests of one connection that wait for a call, and for nothing else: what comes behind them is answered meanwhile.
//!
//! Empty it costs nothing: no timer, no memory. What it holds is counted as its user's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::held::Held;
use super::telemetry::NotParked;
use crate::clock::{Clock, Timestamp};
use crate::engine::{Asker, Brought, Ticket};

/// The requests that wait, those first that came first.
#[derive(Debug)]
pub(super) struct Parked {
    waiting: Vec<Waiting>,
    /// Of the requests themselves.
    bytes: usize,
    held: Held,
    last: u64,
    answers: Option<Arc<Answers>>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    number: u64,
    /// What it came as.
    pub(super) payload: Box<[u8]>,
    pub(super) ticket: Arc<Ticket>,
    /// Whether it has waited once before.
    pub(super) is_second: bool,
    due: Timestamp,
}

/// What was brought for requests that wait. For one that does not any more nothing is kept: it goes into the shares of this
/// host, and back from there.
#[derive(Debug, Default)]
struct Answers {
    open: Mutex<Open>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Open {
    by_number: HashMap<u64, Place>,
    arrived: Vec<u64>,
}

/// Where an answer goes, and the answer once it is there.
type Place = Option<Option<Brought>>;

impl Answers {
    fn change<T>(&self, change: impl FnOnce(&mut Open) -> T) -> T {
        change(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self, number: u64) -> Option<Brought> {
        self.change(|open| open.by_number.remove(&number)).flatten().flatten()
    }

    fn put(&self, number: u64, brought: Option<Brought>) {
        let too_late = self.change(|open| match open.by_number.get_mut(&number) {
            Some(place) => {
                open.arrived.push(number);
                place.replace(brought)
            }
            None => Some(brought),
        });
        drop(too_late);
        self.arrived.notify_one();
    }
}

impl Parked {
    /// Nothing waits yet; `held`: of the user, and nothing so far.
    pub(super) fn new(held: Held) -> Parked {
        Parked { waiting: Vec::new(), bytes: 0, held, last: 0, answers: None }
    }

    /// Nobody waits any more: what is brought goes back.
    pub(super) fn clear(&mut self) {
        self.waiting = Vec::new();
        self.bytes = 0;
        self.held.set(0);
        if let Some(answers) = self.answers.take() {
            drop(answers.change(std::mem::take));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts a request aside.
    ///
    /// # Errors
    /// There is no room, or nobody takes its call.
    pub(super) fn park(
        &mut self,
        payload: &[u8],
        ticket: &Arc<Ticket>,
        is_second: bool,
        now: Timestamp,
        asker: &Asker,
    ) -> Result<(), NotParked> {
        let bytes = self.bytes + payload.len();
        if self.waiting.len() >= PARKED_MAX || bytes > BYTES_MAX {
            return Err(NotParked::Connection);
        }
        if !self.held.set(bytes + (self.waiting.len() + 1) * WAITING_BYTES) {
            return Err(NotParked::User);
        }
        self.last += 1;
        let number = self.last;
        let answers = Arc::clone(self.answers.get_or_insert_default());
        answers.change(|open| open.by_number.insert(number, None));
        let (to, due) = (Arc::clone(&answers), now.after(ticket.patience));
        if !asker.ask(Arc::clone(ticket), due, Box::new(move |brought| to.put(number, brought))) {
            answers.take(number);
            self.count();
            return Err(NotParked::Calls);
        }
        self.bytes = bytes;
        let ticket = Arc::clone(ticket);
        self.waiting.push(Waiting { number, payload: payload.into(), ticket, is_second, due });
        Ok(())
    }

    /// Waits until there is an answer, or the first is due. Cancelled, it has lost nothing.
    pub(super) async fn ready(&mut self, clock: &Clock) {
        let (Some(due), Some(answers)) =
            (self.waiting.iter().map(|waiting| waiting.due).min(), &self.answers)
        else {
            return std::future::pending().await;
        };
        let left = due.since(clock.now().at);
        tokio::select! {
            biased;
            () = answers.arrived.notified() => {}
            () = sleep(left) => {}
        }
    }

    /// The next to be answered, with what was brought for it; nothing, where that did not come in time. `all`: those that
    /// could still wait, too.
    pub(super) fn next(&mut self, all: bool, now: Timestamp) -> Option<(Waiting, Option<Brought>)> {
        let answers = Arc::clone(self.answers.as_ref()?);
        while let Some(number) = answers.change(|open| open.arrived.pop()) {
            let brought = answers.take(number);
            if let Some(at) = self.waiting.iter().position(|waiting| waiting.number == number) {
                return Some((self.take(at), brought));
            }
        }
        let due = self.waiting.iter().position(|waiting| all || waiting.due <= now)?;
        let waiting = self.take(due);
        let brought = answers.take(waiting.number);
        Some((waiting, brought))
    }

    fn take(&mut self, at: usize) -> Waiting {
        let waiting = self.waiting.remove(at);
        self.bytes -= waiting.payload.len();
        self.count();
        waiting
    }

    fn count(&mut self) {
        self.held.set(self.bytes + self.waiting.len() * WAITING_BYTES);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Requests of one connection that wait at once; what comes beyond is judged as if its call were not answered in time.
const PARKED_MAX: usize = 256;

/// What they take: some 80 bytes each, at the common size.
const BYTES_MAX: usize = 64 * 1_024;

/// What one takes besides: its place, its ticket and its answer, each with up to eight keys.
const WAITING_BYTES: usize = 1_024;
