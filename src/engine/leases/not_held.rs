//! Leases that somebody names and that his session does not hold: nothing happens to them, and each is counted by what its
//! number is.

use super::{BOOKS, Leases, Session};
use crate::engine::sync::{AtomicU64, Ordering};

/// What the number of a lease is that a session named and does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotHeld {
    /// It was a lease's, which has ended.
    Ended,
    /// Another session holds it.
    Foreign,
    /// No lease of this daemon has had it.
    Unknown,
}

/// How often.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; 3]);

/// RELEASE and RENEW of leases that their session did not hold, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotHeldTotals {
    /// It had ended: it was released twice, or its time had come, or its process had gone.
    pub ended: u64,
    /// Another session holds it.
    pub foreign: u64,
    /// No lease of this daemon has had this number. Of a number that somebody made up this is certain but for one in some
    /// thousands.
    pub unknown: u64,
}

impl Counts {
    pub(super) fn totals(&self) -> NotHeldTotals {
        let of = |why: NotHeld| self.0.get(why as usize).map_or(0, |count| count.load(Ordering::Relaxed));
        NotHeldTotals {
            ended: of(NotHeld::Ended),
            foreign: of(NotHeld::Foreign),
            unknown: of(NotHeld::Unknown),
        }
    }
}

impl Leases {
    /// Counts a number that a session named and does not hold. It looks into one book after the other: whoever asks has made
    /// a mistake, and each takes no longer than to end a lease.
    #[cold]
    pub(in crate::engine) fn count_not_held(&self, session: &Session, number: u64) {
        let hidden = self.numbers.place(number);
        let mut why = NotHeld::Unknown;
        for number_of_book in 0..BOOKS {
            let book = self.book(number_of_book);
            match book.holder(hidden, number) {
                // Its own session is about to end, and it is about to end with that.
                Some(member) if (number_of_book, member) == (session.0.book, session.0.member) => {
                    why = NotHeld::Ended;
                }
                Some(_) => {
                    why = NotHeld::Foreign;
                    break;
                }
                None if book.leases.has_had(hidden) => why = NotHeld::Ended,
                None => {}
            }
        }
        if let Some(count) = self.not_held.0.get(why as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
