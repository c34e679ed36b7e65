//! A place for a lease, from before its request is judged until it is granted or not.

use std::time::Duration;

use super::Leases;
use super::book::NewLease;
use super::lease::{LeaseCost, Tie};
use super::session::{Attached, Session};
use crate::clock::Now;
use crate::engine::sync::Ordering;

/// A place for a lease, kept until it is granted or not.
#[derive(Debug)]
pub(in crate::engine) struct Reservation<'l> {
    leases: &'l Leases,
    session: &'l Session,
}

/// What a lease is made of.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Terms<'t> {
    pub(in crate::engine) lasts: Duration,
    /// The id of its request.
    pub(in crate::engine) request: u64,
    pub(in crate::engine) ties: &'t [Tie],
    pub(in crate::engine) is_other: bool,
    pub(in crate::engine) cost: LeaseCost,
}

impl<'l> Reservation<'l> {
    pub(super) fn new(leases: &'l Leases, session: &'l Session) -> Reservation<'l> {
        Reservation { leases, session }
    }

    pub(in crate::engine) fn session(&self) -> &'l Session {
        self.session
    }

    /// Grants the lease. `None`: its session has ended meanwhile, or its request was given up on; what it is tied to ends
    /// here and now.
    pub(in crate::engine) fn grant(self, terms: &Terms<'_>, now: Now) -> Option<u64> {
        let (leases, session) = (self.leases, self.session);
        let Attached { book, member, generation, connection, .. } = *session.0;
        let mut book = leases.book(book);
        let owner = book.member(member, generation)?;
        if owner.reports.take(connection, terms.request, now.at) {
            return None;
        }
        let new = NewLease {
            at: now.at,
            lasts: terms.lasts,
            request: terms.request,
            connection,
            ties: terms.ties,
            is_other: terms.is_other,
            cost: terms.cost,
        };
        let number = book.grant(member, &new, |place| leases.numbers.number(place))?;
        drop(book);
        leases.ends_at(now.at.after(terms.lasts));
        self.keep();
        Some(number)
    }

    /// The place is taken.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

/// Not granted: the place is given back.
impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.session.0.holdings.give_back();
        self.leases.live.fetch_sub(1, Ordering::Relaxed);
    }
}
