//! Requests of one connection that wait for remote checks. Later requests are answered meanwhile.
//!
//! Without pending requests there is no timer and no memory. Their memory is charged to the user's account.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::oneshot::{Receiver, channel};
use tokio::time::sleep;

use super::memory_charge::MemoryCharge;
use super::telemetry::NotPending;
use crate::clock::{Clock, Timestamp};
use crate::engine::{CheckReply, SharedRemoteChecker, Shortfalls};

/// The pending requests, oldest first.
#[derive(Debug)]
pub(super) struct PendingRequests {
    requests: Vec<PendingRequest>,
    payload_bytes: usize,
    /// The keys that the requests lack tokens or permits of.
    keys: usize,
    charge: MemoryCharge,
    /// Notified when a check completes.
    arrived: Option<Arc<Notify>>,
}

/// A request that waits for its remote check.
#[derive(Debug)]
pub(super) struct PendingRequest {
    id: u64,
    pub(super) payload: Box<[u8]>,
    pub(super) shortfalls: Arc<Shortfalls>,
    /// Whether it has waited for a check before.
    pub(super) is_second: bool,
    deadline: Timestamp,
    /// The result of its check. When nothing receives it any more, it is dropped, which returns its tokens by way of the
    /// shares of this host.
    result: Receiver<Option<CheckReply>>,
}

impl PendingRequests {
    /// Makes an empty list; `charge` is one of 0 bytes to the user's account.
    pub(super) fn new(charge: MemoryCharge) -> PendingRequests {
        PendingRequests { requests: Vec::new(), payload_bytes: 0, keys: 0, charge, arrived: None }
    }

    /// Drops all pending requests and returns their tokens.
    pub(super) fn clear(&mut self) {
        self.requests = Vec::new();
        (self.payload_bytes, self.keys) = (0, 0);
        self.charge.set_bytes(0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    #[inline]
    pub(super) fn has_id(&self, id: u64) -> bool {
        self.requests.iter().any(|request| request.id == id)
    }

    /// Adds a request and starts its remote check.
    ///
    /// # Errors
    /// There is no room, or the check cannot start.
    pub(super) fn add(
        &mut self,
        payload: &[u8],
        (id, shortfalls): (u64, &Arc<Shortfalls>),
        is_second: bool,
        now: Timestamp,
        remote_checker: &SharedRemoteChecker,
    ) -> Result<(), NotPending> {
        let payload_bytes = self.payload_bytes + payload.len();
        if self.requests.len() >= PENDING_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(NotPending::Connection);
        }
        let keys = self.keys + shortfalls.needs.len();
        if !self.charge.set_bytes(charged_bytes(self.requests.len() + 1, payload_bytes, keys)) {
            return Err(NotPending::User);
        }
        let (sender, result) = channel();
        let arrived = Arc::clone(self.arrived.get_or_insert_default());
        let deadline = now.after(shortfalls.patience);
        let on_reply = Box::new(move |result| {
            let is_awaited = sender.send(result).is_ok();
            arrived.notify_one();
            is_awaited
        });
        if !remote_checker.start_check(Arc::clone(shortfalls), deadline, on_reply) {
            self.update_charge();
            return Err(NotPending::Calls);
        }
        (self.payload_bytes, self.keys) = (payload_bytes, keys);
        let shortfalls = Arc::clone(shortfalls);
        let payload = payload.into();
        self.requests.push(PendingRequest { id, payload, shortfalls, is_second, deadline, result });
        Ok(())
    }

    /// Waits until a check completes or the first deadline passes. Cancel-safe.
    pub(super) async fn ready(&mut self, clock: &Clock) {
        let deadline = self.requests.iter().map(|request| request.deadline).min();
        let (Some(deadline), Some(arrived)) = (deadline, &self.arrived) else {
            return std::future::pending().await;
        };
        let left = deadline.since(clock.now().at);
        tokio::select! {
            biased;
            () = arrived.notified() => {}
            () = sleep(left) => {}
        }
    }

    /// Removes the requests to answer, oldest first, each with the result of its check, `None` if the check failed or timed
    /// out. With `all`, also requests that could still wait are removed.
    pub(super) fn take_ready(
        &mut self,
        all: bool,
        now: Timestamp,
    ) -> Vec<(PendingRequest, Option<CheckReply>)> {
        let mut results = Vec::new();
        let is_ready = |request: &mut PendingRequest| {
            let result = request.take_result(all, now);
            let is_ready = result.is_some();
            results.extend(result);
            is_ready
        };
        let ready: Vec<_> = self.requests.extract_if(.., is_ready).collect();
        self.payload_bytes -= ready.iter().map(|request| request.payload.len()).sum::<usize>();
        self.keys -= ready.iter().map(|request| request.shortfalls.needs.len()).sum::<usize>();
        self.update_charge();
        ready.into_iter().zip(results).collect()
    }

    fn update_charge(&mut self) {
        self.charge.set_bytes(charged_bytes(self.requests.len(), self.payload_bytes, self.keys));
    }
}

impl PendingRequest {
    /// Returns the result of the check once the request can be answered; with `all`, at once.
    fn take_result(&mut self, all: bool, now: Timestamp) -> Option<Option<CheckReply>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) if !all && now < self.deadline => None,
            Err(_) => {
                self.result.close();
                // It may have arrived meanwhile.
                Some(self.result.try_recv().ok().flatten())
            }
        }
    }
}

fn charged_bytes(requests: usize, payload_bytes: usize, keys: usize) -> usize {
    requests * REQUEST_BYTES + payload_bytes + keys * KEY_BYTES
}

impl Drop for PendingRequests {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The most pending requests of one connection. Further ones are decided as after a timeout of their check.
const PENDING_MAX: usize = 512;

/// The most bytes of their payloads, which have about 80 each.
const PAYLOAD_BYTES_MAX: usize = 64 * 1_024;

/// The size of a pending request besides its payload and keys.
const REQUEST_BYTES: usize = 512;

/// The size of a key in its shortfalls and in its result.
const KEY_BYTES: usize = 192;
