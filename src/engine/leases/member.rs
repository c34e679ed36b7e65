//! One session as the book has it: whose it is, and what it holds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::lease::NONE;
use crate::clock::Timestamp;
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
    reports: VecDeque<Report>,
}

/// A request that was given up on.
#[derive(Clone, Copy, Debug)]
struct Report {
    connection: u64,
    request: u64,
    at: Timestamp,
}

/// How many leases a session holds or is about to, beside all of its user.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    of_session: AtomicUsize,
    of_user: Arc<OfUser>,
}

/// What all sessions of a user come to.
#[derive(Debug, Default)]
pub(super) struct OfUser {
    leases: AtomicUsize,
    pub(super) sessions: AtomicUsize,
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
            holdings,
            reports: VecDeque::new(),
        }
    }

    /// How many of its slots are busy.
    pub(super) fn busy(&self) -> u32 {
        if self.slots == 0 { self.working } else { self.working.min(self.slots) }
    }

    /// Whether one more piece of work takes one more of its slots.
    pub(super) fn takes_slot(&self) -> bool {
        self.slots == 0 || self.working < self.slots
    }

    /// Whether one piece of work less frees a slot. To be asked while it still counts.
    pub(super) fn frees_slot(&self) -> bool {
        self.slots == 0 || self.working <= self.slots
    }

    /// Remembers a request that was given up on, in place of the oldest if there are too many.
    pub(super) fn remember(&mut self, connection: u64, request: u64, at: Timestamp) {
        self.forget_old(at);
        if self.reports.len() == REPORTS_MAX {
            self.reports.pop_front();
        }
        self.reports.push_back(Report { connection, request, at });
    }

    /// Whether a request was given up on. It is asked once: the grant was the request's end.
    pub(super) fn is_abandoned(&mut self, connection: u64, request: u64, now: Timestamp) -> bool {
        if self.reports.is_empty() {
            return false;
        }
        self.forget_old(now);
        let is = |report: &Report| report.connection == connection && report.request == request;
        let place = self.reports.iter().position(is);
        place.is_some_and(|place| self.reports.remove(place).is_some())
    }

    fn forget_old(&mut self, now: Timestamp) {
        while self.reports.front().is_some_and(|report| now.since(report.at) >= REMEMBERED) {
            self.reports.pop_front();
        }
    }
}

impl Holdings {
    pub(super) fn new(of_user: Arc<OfUser>) -> Holdings {
        Holdings { of_session: AtomicUsize::new(0), of_user }
    }

    /// Keeps a place for one more lease, if there may be one.
    pub(super) fn reserve(&self, session_max: usize, user_max: usize) -> bool {
        if self.of_session.fetch_add(1, Ordering::Relaxed) >= session_max {
            self.of_session.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        if self.of_user.leases.fetch_add(1, Ordering::Relaxed) >= user_max {
            self.give_back();
            return false;
        }
        true
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

/// Reports that a session is remembered by: as many as it may hold leases.
const REPORTS_MAX: usize = 1_024;

/// A grant is answered long before.
const REMEMBERED: Duration = Duration::from_secs(60);
