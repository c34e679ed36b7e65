//! All sessions and leases, copied out and put back.

use super::book::tie;
use super::lease::Tie;
use super::session::{Attached, OpenSession, Session};
use super::{BOOKS, Leases};
use crate::clock::Now;
use crate::engine::kept::{Kept, KeptLease};

impl Leases {
    /// Copies every session that has a name, each with its leases under one lock.
    pub(in crate::engine) fn copy_out(&self, visit: &mut dyn FnMut(Kept)) {
        let mut copies = Vec::new();
        for number in 0..BOOKS {
            let mut from = 0;
            loop {
                let next = self.book(number).copy_session(from, &mut copies);
                copies.drain(..).for_each(&mut *visit);
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
    }

    /// Looks at every session that has a name, one under each lock.
    pub(in crate::engine) fn each_session(&self, visit: &mut dyn FnMut(OpenSession)) {
        for number in 0..BOOKS {
            let mut from = 0;
            loop {
                let (place, found) = match self.book(number).open_session(from) {
                    Some(next) => next,
                    None => break,
                };
                found.into_iter().for_each(&mut *visit);
                from = place;
            }
        }
    }

    /// Puts a lease of a session back, with what is tied to it. `None`: its time has come, or there are too many.
    pub(in crate::engine) fn put_back(
        &self,
        session: &Session,
        kept: &KeptLease,
        now: Now,
    ) -> Option<Vec<Tie>> {
        if kept.ends_at <= now.at {
            return None;
        }
        let holding = self.reserve(session)?;
        let Attached { book, member, .. } = *session.0;
        let ties: Vec<Tie> = kept.ties.iter().filter_map(tie).collect();
        let ends_at = self.book(book).put_back(member, kept, &ties, now.at)?;
        holding.keep();
        self.ends_at(ends_at);
        Some(ties)
    }
}
