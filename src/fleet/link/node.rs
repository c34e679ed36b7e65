//! One server: a task that keeps one connection open, forever. Without a connection commands fail at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use super::connect::{now, open};
use super::connection::ServerConnection;
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

/// A server, and its connection while there is one.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) url: Url,
    shared: Arc<Shared>,
    state: watch::Sender<NodeState>,
    connection: Mutex<Option<Arc<ServerConnection>>>,
    connections: AtomicU64,
    round_trip: Mutex<RoundTrip>,
    backoff: Mutex<Backoff>,
}

impl Node {
    /// Returns the server and the task that keeps its connection.
    pub(super) fn start(id: NodeId, url: Url, shared: Arc<Shared>) -> (Arc<Node>, AbortOnDropHandle<()>) {
        let node = Arc::new(Node {
            id,
            url,
            shared,
            state: watch::Sender::new(NodeState::Starting),
            connection: Mutex::default(),
            connections: AtomicU64::default(),
            round_trip: Mutex::default(),
            backoff: Mutex::default(),
        });
        let keeper = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&node).keep()));
        (node, keeper)
    }

    pub(super) fn status(&self) -> NodeStatus {
        let connections = self.connections.load(Ordering::Relaxed);
        let round_trip_us = (connections > 0).then(|| Micros::from(self.round_trip.lock().took).0);
        let (id, url, state) = (self.id, self.url.clone(), self.state.borrow().clone());
        NodeStatus { id, url, state, round_trip_us, connections }
    }

    pub(super) fn is_up(&self) -> bool {
        *self.state.borrow() == NodeState::Up
    }

    pub(super) fn is_starting(&self) -> bool {
        *self.state.borrow() == NodeState::Starting
    }

    /// Waits until the server accepts commands.
    pub(super) async fn up(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state == NodeState::Up).await;
    }

    /// Sends commands in one write and returns their replies.
    pub(super) async fn send(&self, commands: &redis::Pipeline) -> Result<Vec<Value>, LinkError> {
        let connection = self.connection.lock().clone().ok_or_else(|| refusal(&self.state.borrow()))?;
        let since = now();
        let mut replies = std::pin::pin!(connection.send(commands));
        let replies = loop {
            let (waited, timeout) = (now().since(since), self.round_trip.lock().timeout());
            if waited >= timeout {
                self.round_trip.lock().missed(now());
                break Err(LinkError::new(FailureClass::Timeout, "no reply in time"));
            }
            let timed_out = async {
                sleep(timeout - waited).await;
                // A process that was stopped finds both ready: the connection reads first.
                yield_now().await;
            };
            tokio::select! {
                biased;
                replies = &mut replies => break replies,
                // Replies to other commands may have extended the timeout.
                () = timed_out => {}
            }
        };
        let ended = |error| LinkError { may_have_run: true, ..self.end(&connection, error) };
        let replies = replies.map_err(ended)?;
        let now = now();
        self.round_trip.lock().record_reply(now.since(since), now);
        for reply in &replies {
            let Value::ServerError(error) = reply else {
                self.backoff.lock().attempts = 0;
                continue;
            };
            let failed = LinkError::of_reply(error);
            if failed.class.ends_the_connection() {
                self.end(&connection, failed);
            }
        }
        Ok(replies)
    }

    /// Ends a connection. The state changes first, so that a caller whose command fails finds the server down.
    fn end(&self, connection: &Arc<ServerConnection>, why: LinkError) -> LinkError {
        let why = connection.end(why);
        if self.connection.lock().take_if(|current| Arc::ptr_eq(current, connection)).is_some() {
            self.state.send_replace(NodeState::Down(why.clone()));
        }
        why
    }

    async fn keep(self: Arc<Node>) {
        let mut logged = None;
        loop {
            let failed = match self.connect().await {
                Err(error) => error,
                Ok((connection, took)) => {
                    // The path may be another one; a connection alone does not end the doubling.
                    self.round_trip.lock().took = took;
                    self.connections.fetch_add(1, Ordering::Relaxed);
                    let connection = Arc::new(connection);
                    *self.connection.lock() = Some(Arc::clone(&connection));
                    self.enter(NodeState::Up, &mut logged);
                    let ended = connection.ended().await;
                    self.end(&connection, ended)
                }
            };
            let failed = LinkError { may_have_run: false, ..failed };
            self.shared.counts.count(failed.class);
            let wait = self.backoff.lock().wait(failed.class);
            self.enter(NodeState::Down(failed), &mut logged);
            sleep(wait).await;
        }
    }

    /// Connects on a task of its own, as the runtime panics if it gets no thread for the name lookup.
    async fn connect(&self) -> Result<(ServerConnection, Duration), LinkError> {
        let (url, shared) = (self.url.clone(), Arc::clone(&self.shared));
        let attempt = tokio::spawn(async move { open(&url, &shared.options, &shared.scripts).await });
        let panicked =
            |_| Err(LinkError::new(FailureClass::Down, "the attempt panicked: raise TasksMax of the unit"));
        AbortOnDropHandle::new(attempt).await.unwrap_or_else(panicked)
    }

    /// Enters a state, and logs it unless it was the last one `logged`. The line names the server and the class of failure,
    /// never a key or a password.
    fn enter(&self, state: NodeState, logged: &mut Option<NodeState>) {
        if logged.as_ref() != Some(&state) {
            let redis = &*self.url.to_string();
            match state.fault() {
                None => tracing::info!(redis, "connected to Redis"),
                Some(error) => {
                    let class = error.class.name();
                    tracing::warn!(redis, class, "no connection to Redis: {error}; probing goes on");
                }
            }
            *logged = Some(state.clone());
        }
        self.state.send_replace(state);
        self.shared.changed();
    }
}

/// The error of a command that cannot be sent.
fn refusal(state: &NodeState) -> LinkError {
    match state {
        NodeState::Up | NodeState::Starting => LinkError::new(FailureClass::Down, "not connected yet"),
        // The timeout belongs to an earlier command; the outcome of this one is known.
        NodeState::Down(error) if error.class == FailureClass::Timeout => {
            LinkError::new(FailureClass::Down, "not connected: the server did not reply in time")
        }
        NodeState::Down(error) | NodeState::Refusing(error) => error.clone(),
    }
}

/// The delay before the next attempt to connect: random, so that the hosts of a fleet do not return together.
#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    /// Since a command was answered.
    attempts: u32,
}

impl Backoff {
    fn wait(&mut self, class: FailureClass) -> Duration {
        if class.is_of_rights() {
            // Only an operator can fix it, and each attempt adds to the server's log.
            return RIGHTS_WAIT;
        }
        self.attempts = self.attempts.saturating_add(1);
        let widest = (WAIT_MIN_MS << self.attempts.min(DOUBLINGS_MAX)).min(WAIT_MAX_MS);
        let (span, chance) = (widest - WAIT_MIN_MS, u64::from(u32::from_ne_bytes(drawn())));
        Duration::from_millis(WAIT_MIN_MS + ((chance * span) >> u32::BITS))
    }
}

const WAIT_MIN_MS: u64 = 100;
const WAIT_MAX_MS: u64 = 5_000;
const DOUBLINGS_MAX: u32 = 6;
const RIGHTS_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::{Backoff, FailureClass};

    #[test]
    fn a_wait_is_any_of_a_range_that_grows_to_five_seconds() {
        for (attempts, longest) in [(0, 199), (1, 399), (4, 3_199), (5, 4_999), (u32::MAX, 4_999)] {
            let wait = |_| Backoff { attempts }.wait(FailureClass::Down).as_millis();
            let mut waits: Vec<_> = (0..1_000).map(wait).collect();
            waits.sort_unstable();
            assert!(waits[0] >= 100 && waits[999] <= longest, "{attempts} attempts: {waits:?}");
            // A tenth of a second has few of the hosts that lost Redis together.
            let crowded =
                waits.iter().zip(&waits[250..]).any(|(first, last)| last - first < (longest - 100) / 8);
            assert!(!crowded, "{attempts} attempts: {waits:?}");
        }
        assert_eq!(Backoff::default().wait(FailureClass::Auth).as_secs(), 30);
        assert_eq!(Backoff::default().wait(FailureClass::NoPerm).as_secs(), 30);
        let mut backoff = Backoff::default();
        backoff.wait(FailureClass::Down);
        assert_eq!(backoff.attempts, 1);
    }
}
