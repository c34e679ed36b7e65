//! One server: a task that keeps one connection open, forever. Without a connection commands fail at once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::backoff::Backoff;
use super::connect::open;
use super::connection::{CommandBatch, CommandResult, Conversation, Queued};
use super::failure::{FailureClass, LinkError};
use super::log::ServerLog;
use super::reply_timeout::ReplyTimeout;
use super::url::Url;

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The first attempt to connect is under way.
    Starting,
    /// The server accepts commands.
    Up,
    /// No connection, with the reason why the last one or the last attempt failed.
    Down(LinkError),
}

/// A server's handle. Dropping it ends the task and the connection.
#[derive(Debug)]
pub(super) struct NodeHandle {
    pub(super) url: Url,
    inbox: mpsc::Sender<CommandBatch>,
    queued: Arc<AtomicUsize>,
    face: Arc<SharedNodeState>,
}

#[derive(Debug)]
struct SharedNodeState {
    state: watch::Sender<NodeState>,
    round_trip_us: AtomicU64,
    connections: AtomicU64,
}

impl NodeHandle {
    pub(super) fn start(url: Url, shared: Arc<Shared>) -> NodeHandle {
        let (inbox, receiver) = mpsc::channel(BATCHES_MAX);
        let face = Arc::new(SharedNodeState {
            state: watch::Sender::new(NodeState::Starting),
            round_trip_us: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let voice = ServerLog::new(url.to_string());
        let keeper = NodeKeeper { url: url.clone(), shared, face: Arc::clone(&face), inbox: receiver, voice };
        tokio::spawn(keeper.keep());
        NodeHandle { url, inbox, queued: Arc::default(), face }
    }

    pub(super) fn state(&self) -> NodeState {
        self.face.state.borrow().clone()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.face.state.borrow(), NodeState::Up)
    }

    /// Waits until the server accepts commands.
    pub(super) async fn up(&self) {
        let mut state = self.face.state.subscribe();
        let _ = state.wait_for(|state| matches!(state, NodeState::Up)).await;
    }

    pub(super) fn round_trip_us(&self) -> Option<u64> {
        Some(self.face.round_trip_us.load(Ordering::Relaxed)).filter(|micros| *micros > 0)
    }

    pub(super) fn connections(&self) -> u64 {
        self.face.connections.load(Ordering::Relaxed)
    }

    /// Sends `count` commands in one write and returns the receivers of their replies.
    pub(super) fn send(
        &self,
        bytes: Arc<Vec<u8>>,
        count: usize,
    ) -> Result<Vec<oneshot::Receiver<CommandResult>>, LinkError> {
        if let Some(error) = refusal(&self.face.state.borrow()) {
            return Err(error);
        }
        let full = || LinkError::new(FailureClass::Down, "too much waits for the server already");
        let queued = Queued::take(&self.queued, bytes.len()).ok_or_else(full)?;
        let (replies, receivers) = (0..count).map(|_| oneshot::channel()).unzip();
        self.inbox.try_send(CommandBatch { bytes, replies, queued }).map_err(|_| full())?;
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
        NodeState::Down(error) => Some(error.clone().of_unsent()),
    }
}

struct NodeKeeper {
    url: Url,
    shared: Arc<Shared>,
    face: Arc<SharedNodeState>,
    inbox: mpsc::Receiver<CommandBatch>,
    voice: ServerLog,
}

impl NodeKeeper {
    async fn keep(mut self) {
        let mut patience = ReplyTimeout::default();
        let mut backoff = Backoff::default();
        loop {
            let shared = Arc::clone(&self.shared);
            let url = self.url.clone();
            let attempt = async move {
                // A task of its own, as the runtime panics if it gets no thread for the name lookup.
                let mut attempt = JoinSet::new();
                attempt.spawn(async move {
                    timeout(CONNECT_TIMEOUT, open(&url, &shared.options, &shared.scripts)).await
                });
                let timed_out =
                    |_| Err(LinkError::new(FailureClass::Timeout, "no connection within two seconds"));
                match attempt.join_next().await {
                    Some(Ok(opened)) => opened.unwrap_or_else(timed_out),
                    _ => Err(LinkError::new(
                        FailureClass::Down,
                        "the attempt panicked: raise TasksMax of the unit",
                    )),
                }
            };
            let failed = match self.refuse_until(attempt).await {
                None => return,
                Some(Err(error)) => error,
                Some(Ok((conversation, micros))) => {
                    patience.begin(micros);
                    match self.converse(conversation, &mut patience, &mut backoff).await {
                        None => return,
                        Some(error) => error,
                    }
                }
            };
            self.shared.counts.count(failed.class);
            let wait = backoff.wait(failed.class);
            self.stand(NodeState::Down(failed));
            if self.refuse_until(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Runs an open connection; `None` once the inbox is closed.
    async fn converse(
        &mut self,
        mut conversation: Conversation,
        patience: &mut ReplyTimeout,
        backoff: &mut Backoff,
    ) -> Option<LinkError> {
        let face = Arc::clone(&self.face);
        let told = |patience: &ReplyTimeout| {
            face.round_trip_us.store(patience.round_trip_us().unwrap_or_default(), Ordering::Relaxed);
        };
        told(patience);
        face.connections.fetch_add(1, Ordering::Relaxed);
        self.stand(NodeState::Up);
        let ended = conversation.go_on(&mut self.inbox, patience, told).await?;
        if conversation.was_of_use {
            backoff.reset();
        }
        // The state changes first, so that a caller whose command fails finds the server down.
        self.face.state.send_replace(NodeState::Down(ended.clone()));
        conversation.end(&ended);
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
                    let state = self.face.state.borrow().clone();
                    batch?.refuse(&refusal(&state).unwrap_or_else(|| LinkError::new(FailureClass::Down, "not connected")));
                }
            }
        }
    }

    fn stand(&mut self, state: NodeState) {
        self.voice.say(&state);
        self.face.state.send_replace(state);
        self.shared.changes.send_modify(|changes| *changes += 1);
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeState::Starting => f.write_str("starting"),
            NodeState::Up => f.write_str("up"),
            NodeState::Down(error) => write!(f, "down: {error}"),
        }
    }
}

/// Bounds the connection, the TLS handshake and the loading of scripts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

const BATCHES_MAX: usize = 1024;
