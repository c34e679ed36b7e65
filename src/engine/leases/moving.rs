//! Whether places are on their way: counted under a limit and not held by a lease yet, or no more. It knows how many are,
//! never which.

use super::BOOKS;
use crate::engine::sync::{AtomicU32, Ordering};

/// How many who move places have begun and not ended, by book, so that decision threads keep apart.
#[derive(Debug)]
pub(super) struct Moves(Box<[Count]>);

/// A number on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU32);

/// Somebody moves places until this drops.
#[derive(Debug)]
pub(in crate::engine) struct Moving<'m>(Option<&'m Count>);

impl Moves {
    pub(super) fn new() -> Moves {
        Moves((0..BOOKS).map(|_| Count::default()).collect())
    }

    pub(super) fn begin(&self, book: usize) -> Moving<'_> {
        let count = self.0.get(book % BOOKS);
        if let Some(count) = count {
            // What comes next takes a lock that whoever asks takes as well, or has taken before: it is seen by then.
            count.0.fetch_add(1, Ordering::Relaxed);
        }
        Moving(count)
    }

    pub(super) fn are_some(&self) -> bool {
        // Of who has ended all that he did is seen.
        self.0.iter().any(|count| count.0.load(Ordering::Acquire) > 0)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.0.fetch_sub(1, Ordering::Release);
        }
    }
}
