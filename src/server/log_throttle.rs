//! A word in the log that is not repeated each time: a client that tries again at once must not fill the disk. It never
//! writes the word itself.

use std::time::Duration;

use crate::clock::Timestamp;

/// When it was last said, and how often it was not.
#[derive(Debug, Default)]
pub(super) struct Word {
    told_at: Option<Timestamp>,
    untold: u64,
}

impl Word {
    /// Counts one more occasion; how many there were since the last word, when it is time for another.
    pub(super) fn is_due(&mut self, now: Timestamp) -> Option<u64> {
        self.untold += 1;
        let is_due = self.told_at.is_none_or(|told| now.since(told) >= TELL_EVERY);
        is_due.then(|| {
            self.told_at = Some(now);
            std::mem::take(&mut self.untold)
        })
    }
}

/// Often enough to be noticed, seldom enough to be read.
const TELL_EVERY: Duration = Duration::from_secs(10);
