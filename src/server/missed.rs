//! Decisions that clients made without us, as they report them: somebody is told.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::clock::Timestamp;
use crate::protocol;

/// Adds reports up and logs the sum now and then, so that no client can fill the log.
#[derive(Debug, Default)]
pub(super) struct Missed {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    untold: protocol::Missed,
    told_at: Option<Timestamp>,
}

impl Missed {
    /// Takes a client's report.
    pub(super) fn report(&self, missed: &protocol::Missed) {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        for (reason, more) in missed.iter() {
            let sum = book.untold.of(reason).saturating_add(more);
            book.untold.set(reason, sum);
        }
    }

    /// Logs what was reported since the last time, at most every [`TELL_EVERY`].
    pub(super) fn tell(&self, now: Timestamp) {
        let untold = {
            let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = book.told_at.is_none_or(|told| now.since(told) >= TELL_EVERY);
            if !is_due || book.untold.is_empty() {
                return;
            }
            book.told_at = Some(now);
            std::mem::take(&mut book.untold)
        };
        log(&untold);
    }

    /// Logs what has not been logged yet.
    pub(super) fn tell_now(&self) {
        let untold = std::mem::take(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner).untold);
        if !untold.is_empty() {
            log(&untold);
        }
    }
}

/// Outside the lock, which a decision may need.
fn log(missed: &protocol::Missed) {
    let [unreachable, timeout, protocol, breaker, callback] =
        protocol::MissReason::ALL.map(|reason| missed.of(reason));
    warn!(
        unreachable,
        timeout, protocol, breaker, callback, "clients report decisions made without tidegate"
    );
}

/// Often enough to be noticed, seldom enough to be read.
const TELL_EVERY: Duration = Duration::from_secs(10);
