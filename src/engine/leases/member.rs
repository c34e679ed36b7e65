//! One session as the book has it: whose it is, and what it holds.

use std::sync::Arc;

use super::lease::NONE;
use super::reports::Reports;
use crate::clock::Timestamp;
use crate::engine::ledger::{Account, Use};
use crate::engine::pool::Pool;
use crate::engine::sync::{AtomicUsize, Ordering};

/// One session.
#[derive(Debug)]
pub(super) struct Member {
    /// Its own name, if it gave one.
    pub(super) name: Option<[u8; 16]>,
    /// Tells it from who had the same number before.
    pub(super) generation: u64,
    pub(super) user: u32,
    pub(super) pid: Option<u32>,
    pub(super) pool: Arc<Pool>,
    /// How many requests it works on at once; 0: unknown.
    pub(super) slots: u32,
    pub(super) connections: u32,
    /// When it ends, if nobody connects before.
    pub(super) ends_at: Option<Timestamp>,
    /// Its leases: the first, and how many.
    pub(super) first: u32,
    pub(super) working: u32,
    /// Of these, the ones that are other than the most important work.
    pub(super) others: u32,
    pub(super) holdings: Arc<Holdings>,
    pub(super) reports: Reports,
}

/// How many leases a session holds or is about to, beside all of its user.
#[derive(Debug)]
pub(super) struct Holdings {
    of_session: AtomicUsize,
    of_user: Arc<Account>,
}

impl Member {
    pub(super) fn new(
        name: Option<[u8; 16]>,
        generation: u64,
        user: u32,
        pid: Option<u32>,
        pool: Arc<Pool>,
        slots: u32,
        holdings: Arc<Holdings>,
    ) -> Member {
        Member {
            name,
            generation,
            user,
            pid,
            pool,
            slots,
            connections: 1,
            ends_at: None,
            first: NONE,
            working: 0,
            others: 0,
            reports: Reports::new(Arc::clone(&holdings.of_user)),
            holdings,
        }
    }

    /// Whether one more piece of work takes one more of its slots.
    pub(super) fn takes_slot(&self) -> bool {
        self.slots == 0 || self.working < self.slots
    }

    /// Whether one piece of work less frees a slot. To be asked while it still counts.
    pub(super) fn frees_slot(&self) -> bool {
        self.slots == 0 || self.working <= self.slots
    }
}

impl Holdings {
    pub(super) fn new(of_user: Arc<Account>) -> Holdings {
        Holdings { of_session: AtomicUsize::new(0), of_user }
    }

    /// Keeps a place for one more lease, if there may be one.
    pub(super) fn reserve(&self, session_max: usize, user_max: usize) -> bool {
        if self.of_session.fetch_add(1, Ordering::Relaxed) >= session_max {
            self.of_session.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        if self.of_user.leases.fetch_add(1, Ordering::Relaxed) >= user_max
            || !self.of_user.has_room(Use::Leases)
        {
            self.give_back();
            return false;
        }
        true
    }

    /// A lease begins that these bytes are tied to.
    pub(super) fn charge(&self, bytes: usize) {
        if bytes > 0 {
            self.of_user.charge(bytes);
        }
    }

    /// A lease has ended that these bytes were tied to.
    pub(super) fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.of_user.shrink(bytes);
        }
    }

    /// The session has ended.
    pub(super) fn leave(&self) {
        self.of_user.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self) {
        self.of_session.fetch_sub(1, Ordering::Relaxed);
        self.of_user.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
