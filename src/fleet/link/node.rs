//! One server: a task that keeps one connection open, forever. Without a connection commands fail at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Shared;
use super::connect::open;
use super::connection::{CommandBatch, CommandResult, ServerConnection};
use super::failure::{FailureClass, LinkError};
use super::nodes::NodeId;
use super::url::Url;
use crate::clock::Micros;
use crate::fleet::rng::drawn;
use crate::fleet::round_trip::RoundTrip;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    Starting,
    Up,
    /// No connection, with the reason why the last one or the last attempt failed.
    Down(LinkError),
    /// Connected, but the server refuses commands, with the reason: it is full, for example.
    Refusing(LinkError),
}

impl NodeState {
    /// Returns why the server runs no commands, if it does not.
    pub fn fault(&self) -> Option<&LinkError> {
        match self {
            NodeState::Starting | NodeState::Up => None,
            NodeState::Down(error) | NodeState::Refusing(error) => Some(error),
        }
    }
}

#[derive(Clone, Debug)]
pub struct NodeStatus {
    pub id: NodeId,
    pub url: Url,
    pub state: NodeState,
    /// The smoothed round trip, µs, once known.
    pub round_trip_us: Option<u64>,
    pub connections: u64,
}

/// A server's handle. Dropping it ends the task and the connection.
#[derive(Debug)]
pub(super) struct NodeHandle {
    pub(super) id: NodeId,
    pub(super) url: Url,
    inbox: mpsc::Sender<CommandBatch>,
    /// Bytes that the queue still takes.
    room: Arc<Semaphore>,
    status: watch::Receiver<NodeStatus>,
}

impl NodeHandle {
    pub(super) fn start(id: NodeId, url: Url, shared: Arc<Shared>) -> NodeHandle {
        let (inbox, receiver) = mpsc::channel(BATCHES_MAX);
        let state = NodeState::Starting;
        let status = NodeStatus { id, url: url.clone(), state, round_trip_us: None, connections: 0 };
        let (to, status) = watch::channel(status);
        let keeper = NodeKeeper {
            url: url.clone(),
            shared,
            status: to,
            inbox: receiver,
            logged: None,
            round_trip: RoundTrip::default(),
            backoff: Backoff::default(),
        };
        tokio::spawn(keeper.keep());
        NodeHandle { id, url, inbox, room: Arc::new(Semaphore::new(QUEUED_BYTES_MAX as usize)), status }
    }

    pub(super) fn status(&self) -> NodeStatus {
        self.status.borrow().clone()
    }

    pub(super) fn is_up(&self) -> bool {
        self.status.borrow().state == NodeState::Up
    }

    pub(super) fn is_starting(&self) -> bool {
        self.status.borrow().state == NodeState::Starting
    }

    /// Waits until the server accepts commands.
    pub(super) async fn up(&self) {
        let _ = self.status.clone().wait_for(|status| status.state == NodeState::Up).await;
    }

    /// Sends `count` commands in one write and returns the receivers of their replies.
    pub(super) fn send(
        &self,
        bytes: Vec<u8>,
        count: usize,
    ) -> Result<Vec<oneshot::Receiver<CommandResult>>, LinkError> {
        if let Some(error) = refusal(&self.status.borrow().state) {
            return Err(error);
        }
        let full = || LinkError::new(FailureClass::Down, "too much waits for the server already");
        // An empty queue accepts a batch of any size.
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(QUEUED_BYTES_MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(size).map_err(|_| full())?;
        let (replies, receivers) = (0..count).map(|_| oneshot::channel()).unzip();
        self.inbox.try_send(CommandBatch { bytes, replies, room }).map_err(|_| full())?;
        Ok(receivers)
    }
}

/// The error of a command that cannot be sent.
fn refusal(state: &NodeState) -> Option<LinkError> {
    match state {
        NodeState::Up => None,
        NodeState::Starting => Some(LinkError::new(FailureClass::Down, "not connected yet")),
        // The timeout belongs to an earlier command; the outcome of this one is known.
        NodeState::Down(error) if error.class == FailureClass::Timeout => {
            Some(LinkError::new(FailureClass::Down, "not connected: the server did not reply in time"))
        }
        NodeState::Down(error) | NodeState::Refusing(error) => {
            Some(LinkError { may_have_run: false, ..error.clone() })
        }
    }
}

struct NodeKeeper {
    url: Url,
    shared: Arc<Shared>,
    status: watch::Sender<NodeStatus>,
    inbox: mpsc::Receiver<CommandBatch>,
    /// The fault of the state that was last logged, each change of which is a line. It names the server and the class of
    /// failure, never a key or a password.
    logged: Option<Option<LinkError>>,
    round_trip: RoundTrip,
    backoff: Backoff,
}

impl NodeKeeper {
    async fn keep(mut self) {
        loop {
            let connect = connect(self.url.clone(), Arc::clone(&self.shared));
            let failed = match self.refuse_until(connect).await {
                None => return,
                Some(Err(error)) => error,
                Some(Ok((connection, took))) => match self.serve(connection, took).await {
                    None => return,
                    Some(error) => error,
                },
            };
            self.shared.counts.count(failed.class);
            let wait = self.backoff.wait(failed.class, u32::from_ne_bytes(drawn()));
            self.enter(NodeState::Down(failed));
            if self.refuse_until(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Runs an open connection; `None` once the inbox is closed.
    async fn serve(&mut self, mut connection: ServerConnection, took: Duration) -> Option<LinkError> {
        // The path may be another one; a connection alone does not end the doubling.
        self.round_trip.took = took;
        self.status.send_modify(|status| {
            status.connections += 1;
            status.round_trip_us = Some(Micros::from(took).0);
        });
        self.enter(NodeState::Up);
        let status = &self.status;
        let on_reply = |round_trip: &RoundTrip| {
            // Without notice: only a change of the state is awaited.
            status.send_if_modified(|status| {
                status.round_trip_us = Some(Micros::from(round_trip.took).0);
                false
            });
        };
        let ended = connection.run(&mut self.inbox, &mut self.round_trip, on_reply).await?;
        if connection.was_of_use {
            self.backoff.attempts = 0;
        }
        // The state changes first, so that a caller whose command fails finds the server down.
        self.status.send_modify(|status| status.state = NodeState::Down(ended.clone()));
        connection.end(&ended);
        Some(ended)
    }

    /// Refuses batches until a future completes, without a connection; `None` once the inbox is closed.
    async fn refuse_until<T>(&mut self, until: impl Future<Output = T>) -> Option<T> {
        let mut until = std::pin::pin!(until);
        loop {
            tokio::select! {
                biased;
                done = &mut until => return Some(done),
                batch = self.inbox.recv() => {
                    let why = refusal(&self.status.borrow().state);
                    batch?.refuse(&why.unwrap_or_else(|| LinkError::new(FailureClass::Down, "not connected")));
                }
            }
        }
    }

    fn enter(&mut self, state: NodeState) {
        let unsent = |error: &LinkError| LinkError { may_have_run: false, ..error.clone() };
        let fault = Some(state.fault().map(unsent));
        if self.logged != fault {
            let redis = &*self.url.to_string();
            match fault.iter().flatten().next() {
                None => tracing::info!(redis, "connected to Redis"),
                Some(error) => {
                    let class = error.class.name();
                    tracing::warn!(redis, class, "no connection to Redis: {error}; probing goes on");
                }
            }
            self.logged = fault;
        }
        self.status.send_modify(|status| status.state = state);
        self.shared.changes.send_modify(|changes| *changes += 1);
    }
}

/// Connects on a task of its own, as the runtime panics if it gets no thread for the name lookup.
async fn connect(url: Url, shared: Arc<Shared>) -> Result<(ServerConnection, Duration), LinkError> {
    let mut attempt = JoinSet::new();
    attempt.spawn(async move { open(&url, &shared.options, &shared.scripts).await });
    match attempt.join_next().await {
        Some(Ok(opened)) => opened,
        _ => Err(LinkError::new(FailureClass::Down, "the attempt panicked: raise TasksMax of the unit")),
    }
}

/// The delay before the next attempt to connect: random, so that the hosts of a fleet do not return together.
#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    /// Since a command was answered.
    attempts: u32,
}

impl Backoff {
    fn wait(&mut self, class: FailureClass, chance: u32) -> Duration {
        if class.is_of_rights() {
            // Only an operator can fix it, and each attempt adds to the server's log.
            return RIGHTS_WAIT;
        }
        self.attempts = self.attempts.saturating_add(1);
        let widest = (WAIT_MIN_MS << self.attempts.min(DOUBLINGS_MAX)).min(WAIT_MAX_MS);
        let span = widest - WAIT_MIN_MS;
        Duration::from_millis(WAIT_MIN_MS + ((u64::from(chance) * span) >> u32::BITS))
    }
}

/// Bytes queued for a server that has stopped reading: 100 times a tick of sixteen full batches.
const QUEUED_BYTES_MAX: u32 = 8 << 20;

const BATCHES_MAX: usize = 1024;

const WAIT_MIN_MS: u64 = 100;
const WAIT_MAX_MS: u64 = 5_000;
const DOUBLINGS_MAX: u32 = 6;
const RIGHTS_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::{Backoff, FailureClass};

    #[test]
    fn the_range_grows_to_five_seconds_and_ends_there() {
        let mut backoff = Backoff::default();
        let longest: Vec<_> =
            (0..8).map(|_| backoff.wait(FailureClass::Down, u32::MAX).as_millis()).collect();
        assert_eq!(longest, [199, 399, 799, 1599, 3199, 4999, 4999, 4999]);
        let shortest = backoff.wait(FailureClass::Down, 0).as_millis();
        assert_eq!(shortest, 100, "the whole range, not its upper end");
        assert_eq!(backoff.wait(FailureClass::Auth, 0).as_secs(), 30);
        assert_eq!(backoff.wait(FailureClass::NoPerm, 0).as_secs(), 30);
    }
}
