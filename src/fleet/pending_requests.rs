//! The bounded channel of pending requests from the decision threads to the sync task. Senders never block.

use crate::clock::Timestamp;
use crate::engine::{OnCheckReply, RemoteChecker, Shortfalls};
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// A pending request on its way to the sync task.
pub struct WaitingRequest {
    /// The tokens and permits that the request lacks.
    pub shortfalls: Arc<Shortfalls>,
    /// The deadline of the request.
    pub due: Timestamp,
    /// Runs with the outcome.
    pub on_reply: OnCheckReply,
}

/// The sending end.
#[derive(Clone, Debug)]
pub struct CheckSender(Sender<WaitingRequest>);

impl CheckSender {
    /// Makes the channel.
    #[must_use]
    pub fn new() -> (CheckSender, Receiver<WaitingRequest>) {
        let (to, from) = channel(WAITING_MAX);
        (CheckSender(to), from)
    }
}

impl RemoteChecker for CheckSender {
    fn start_check(&self, shortfalls: Arc<Shortfalls>, due: Timestamp, on_reply: OnCheckReply) -> bool {
        self.0.try_send(WaitingRequest { shortfalls, due, on_reply }).is_ok()
    }
}

impl fmt::Debug for WaitingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRequest").field("shortfalls", &self.shortfalls).finish_non_exhaustive()
    }
}

/// Capacity: more than the requests of ten milliseconds.
const WAITING_MAX: usize = 1_024;
