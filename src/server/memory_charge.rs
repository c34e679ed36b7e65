//! Memory of one connection beyond its idle size, charged to the account of its user. It frees nothing itself.
//!
//! Charged when a buffer grows for a large frame, when replies wait for a peer that does not read, and for requests
//! that wait for a remote check: a healthy connection does none of these and pays nothing.

use std::sync::Arc;

use tracing::warn;

use super::ServerState;
use crate::engine::{Account, AccountUse};

/// The charge of one connection for one use, credited by its drop.
#[derive(Debug)]
pub(super) struct MemoryCharge {
    shared: Arc<ServerState>,
    user: u32,
    account: Arc<Account>,
    purpose: AccountUse,
    bytes: usize,
}

impl MemoryCharge {
    /// Makes a charge of 0 bytes.
    pub(super) fn new(shared: Arc<ServerState>, user: u32, purpose: AccountUse) -> MemoryCharge {
        let account = shared.engine.account(user);
        MemoryCharge { shared, user, account, purpose, bytes: 0 }
    }

    /// Sets the charge. Returns false, without a change, if the account has no room.
    pub(super) fn set_bytes(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            if !self.account.grow(self.purpose, bytes - self.bytes) {
                self.log_full();
                return false;
            }
        } else {
            self.account.shrink(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }

    /// Logs that connections are closed. Requests that cannot wait have a metric instead.
    #[cold]
    fn log_full(&self) {
        if self.purpose != AccountUse::Buffers {
            return;
        }
        let now = self.shared.clock.now().at;
        if let Some(connections) = self.shared.account_throttle.count_event(now) {
            warn!(
                user = self.user,
                connections,
                "the connections of this user hold 16 MiB of unread replies, large frames and reports, or all \
                 users together 64 MiB: some are closed"
            );
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}
