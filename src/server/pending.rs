//! Requests of one connection that wait for remote checks. Later requests are answered meanwhile.
//!
//! Without pending requests there is no timer and no memory. Their memory is charged to the user's account.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
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
    charge: MemoryCharge,
    last_number: u64,
    results: Option<Arc<CheckResults>>,
}

/// A request that waits for its remote check.
#[derive(Debug)]
pub(super) struct PendingRequest {
    number: u64,
    pub(super) payload: Box<[u8]>,
    pub(super) shortfalls: Arc<Shortfalls>,
    /// Whether it has waited for a check before.
    pub(super) is_second: bool,
    deadline: Timestamp,
}

/// The results of remote checks. The result of a request that no longer waits is dropped, which returns its tokens by
/// way of the shares of this host.
#[derive(Debug, Default)]
struct CheckResults {
    open: Mutex<OpenChecks>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct OpenChecks {
    by_number: HashMap<u64, ResultSlot>,
    arrived: Vec<u64>,
}

/// The result of a check, once it has completed.
type ResultSlot = Option<Option<CheckReply>>;

impl CheckResults {
    fn change<T>(&self, change: impl FnOnce(&mut OpenChecks) -> T) -> T {
        change(&mut self.open.lock())
    }

    fn remove(&self, number: u64) -> Option<CheckReply> {
        self.change(|open| open.by_number.remove(&number)).flatten().flatten()
    }

    /// Stores the result of a check. Returns whether its request still waits, and so is answered by it.
    fn complete(&self, number: u64, result: Option<CheckReply>) -> bool {
        let unused = self.change(|open| match open.by_number.get_mut(&number) {
            Some(slot) => {
                open.arrived.push(number);
                *slot = Some(result);
                None
            }
            None => Some(result),
        });
        self.arrived.notify_one();
        // Dropped without the lock, as the drop takes locks of the engine.
        unused.is_none()
    }
}

impl PendingRequests {
    /// Makes an empty list; `charge` is one of 0 bytes to the user's account.
    pub(super) fn new(charge: MemoryCharge) -> PendingRequests {
        PendingRequests { requests: Vec::new(), payload_bytes: 0, charge, last_number: 0, results: None }
    }

    /// Drops all pending requests and returns their tokens.
    pub(super) fn clear(&mut self) {
        self.requests = Vec::new();
        self.payload_bytes = 0;
        self.charge.set_bytes(0);
        if let Some(results) = self.results.take() {
            drop(results.change(std::mem::take));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request and starts its remote check.
    ///
    /// # Errors
    /// There is no room, or the check cannot start.
    pub(super) fn add(
        &mut self,
        payload: &[u8],
        shortfalls: &Arc<Shortfalls>,
        is_second: bool,
        now: Timestamp,
        asker: &SharedRemoteChecker,
    ) -> Result<(), NotPending> {
        let payload_bytes = self.payload_bytes + payload.len();
        if self.requests.len() >= PENDING_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(NotPending::Connection);
        }
        if !self.charge.set_bytes(payload_bytes + (self.requests.len() + 1) * REQUEST_BYTES) {
            return Err(NotPending::User);
        }
        self.last_number += 1;
        let number = self.last_number;
        let results = Arc::clone(self.results.get_or_insert_default());
        results.change(|open| open.by_number.insert(number, None));
        let (to, deadline) = (Arc::clone(&results), now.after(shortfalls.patience));
        if !asker.start_check(
            Arc::clone(shortfalls),
            deadline,
            Box::new(move |result| to.complete(number, result)),
        ) {
            results.remove(number);
            self.update_charge();
            return Err(NotPending::Calls);
        }
        self.payload_bytes = payload_bytes;
        let shortfalls = Arc::clone(shortfalls);
        self.requests.push(PendingRequest {
            number,
            payload: payload.into(),
            shortfalls,
            is_second,
            deadline,
        });
        Ok(())
    }

    /// Waits until a check completes or the first deadline passes. Cancel-safe.
    pub(super) async fn ready(&mut self, clock: &Clock) {
        let (Some(deadline), Some(results)) =
            (self.requests.iter().map(|request| request.deadline).min(), &self.results)
        else {
            return std::future::pending().await;
        };
        let left = deadline.since(clock.now().at);
        tokio::select! {
            biased;
            () = results.arrived.notified() => {}
            () = sleep(left) => {}
        }
    }

    /// Removes the next request to answer. Returns it with the result of its check, `None` if the check failed or timed
    /// out. With `all`, also requests that could still wait are removed.
    pub(super) fn next(&mut self, all: bool, now: Timestamp) -> Option<(PendingRequest, Option<CheckReply>)> {
        let results = Arc::clone(self.results.as_ref()?);
        while let Some(number) = results.change(|open| open.arrived.pop()) {
            let result = results.remove(number);
            if let Some(index) = self.requests.iter().position(|request| request.number == number) {
                return Some((self.remove(index), result));
            }
        }
        let index = self.requests.iter().position(|request| all || request.deadline <= now)?;
        let request = self.remove(index);
        let result = results.remove(request.number);
        Some((request, result))
    }

    fn remove(&mut self, index: usize) -> PendingRequest {
        let request = self.requests.remove(index);
        self.payload_bytes -= request.payload.len();
        self.update_charge();
        request
    }

    fn update_charge(&mut self) {
        self.charge.set_bytes(self.payload_bytes + self.requests.len() * REQUEST_BYTES);
    }
}

impl Drop for PendingRequests {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The most pending requests of one connection. Further ones are decided as after a timeout of their check.
const PENDING_MAX: usize = 256;

/// The most bytes of their payloads: about 80 each at the typical size.
const PAYLOAD_BYTES_MAX: usize = 64 * 1_024;

/// The size of a pending request besides its payload: its entry, shortfalls and result, each with up to eight keys.
const REQUEST_BYTES: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::CheckResults;

    #[test]
    fn answers_only_requests_that_still_wait() {
        let results = CheckResults::default();
        results.change(|open| open.by_number.insert(1, None));
        assert!(results.complete(1, None));
        assert!(results.remove(1).is_none());
        assert!(!results.complete(1, None), "its request was decided before");
    }
}
