//! Memory of one connection beyond its idle size, charged to the account of its user. It frees nothing itself.
//!
//! Charged when a buffer grows for a large frame, when replies wait for a peer that does not read, and for requests
//! that wait for a remote check: a healthy connection does none of these and pays nothing.

use std::sync::Arc;

use tracing::warn;

use crate::engine::{Account, AccountUse, Engine};

/// The memory of a connection of an adapter, which limits it itself: shown, and not charged.
#[derive(Debug)]
pub struct AdapterMemory(Arc<Account>);

impl AdapterMemory {
    /// Counts a connection, until this is dropped.
    pub(super) fn open(account: Arc<Account>) -> AdapterMemory {
        account.connect();
        AdapterMemory(account)
    }

    pub fn add(&self, bytes: usize) {
        self.0.add_beside(bytes);
    }

    pub fn remove(&self, bytes: usize) {
        self.0.remove_beside(bytes);
    }
}

impl Drop for AdapterMemory {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

/// The charge of one connection for one use, credited by its drop.
#[derive(Debug)]
pub(super) struct MemoryCharge {
    user: u32,
    account: Arc<Account>,
    purpose: AccountUse,
    bytes: usize,
}

impl MemoryCharge {
    /// Makes a charge of 0 bytes.
    pub(super) fn new(engine: &Engine, user: u32, purpose: AccountUse) -> MemoryCharge {
        MemoryCharge { user, account: engine.account(user), purpose, bytes: 0 }
    }

    /// Sets the charge. Returns false, without a change, if the account has no room.
    pub(super) fn set_bytes(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            if !self.account.grow(self.purpose, bytes - self.bytes) {
                // Requests that cannot wait have a line of their own.
                if self.purpose == AccountUse::Buffers {
                    warn!(
                        user = self.user,
                        "the connections of this user hold 16 MiB of unread replies, large frames and reports, or all \
                         users together 64 MiB: some are closed"
                    );
                }
                return false;
            }
        } else {
            self.account.shrink(self.bytes - bytes);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}
