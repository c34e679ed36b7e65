//! What one connection holds beyond what it has at rest, charged to the account of its user. It frees nothing itself.
//!
//! Charged when a buffer grows for a large frame, when replies must wait for a peer that does not read, and for requests
//! that wait for a remote check: a healthy connection does none of these and pays nothing.

use std::sync::{Arc, PoisonError};

use tracing::warn;

use super::Shared;
use crate::engine::{Account, Use};

/// What one connection holds for one use. Given back when it drops.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    user: u32,
    account: Arc<Account>,
    what: Use,
    bytes: usize,
}

impl Held {
    pub(super) fn nothing(shared: Arc<Shared>, user: u32, what: Use) -> Held {
        let account = shared.engine.account(user);
        Held { shared, user, account, what, bytes: 0 }
    }

    /// Notes that the connection holds so many bytes now; whether it may. If not, nothing is noted.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            if !self.account.grow(self.what, bytes - self.bytes) {
                self.tell_full();
                return false;
            }
        } else {
            self.account.shrink(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Says that connections are closed. Requests that cannot wait have a metric of their own.
    #[cold]
    fn tell_full(&self) {
        if self.what != Use::Buffers {
            return;
        }
        let now = self.shared.clock.now().at;
        let due = self.shared.full.lock().unwrap_or_else(PoisonError::into_inner).is_due(now);
        if let Some(connections) = due {
            warn!(
                user = self.user,
                connections,
                "the connections of this user hold 16 MiB of unread replies, large frames and reports, or all \
                 users together 64 MiB: some are closed"
            );
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}
