//! A place for a lease, from before its request is judged until it is granted or not.

use super::Leases;
use super::lease::NewLease;
use super::session::{Attached, Session};
use crate::clock::Now;
use crate::engine::sync::Ordering;

/// A place for a lease, kept until it is granted or not.
#[derive(Debug)]
pub(in crate::engine) struct Reservation<'l> {
    leases: &'l Leases,
    session: &'l Session,
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
    pub(in crate::engine) fn grant(self, new: &NewLease<'_>, now: Now) -> Option<u64> {
        let (leases, session) = (self.leases, self.session);
        let Attached { book, member, generation, connection, .. } = *session.0;
        let mut book = leases.book(book);
        let owner = book.member(member, generation)?;
        if owner.reports.take(connection, new.request, now.at) {
            return None;
        }
        let number =
            book.grant(member, connection, new, now.at, |place| leases.numbers.number(place))?;
        drop(book);
        leases.ends_at(now.at.after(new.lasts));
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
