//! Proven rules: those under which the daemon ran for a while. They are stored for a start after a crash
//! loop, which uses them instead of the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::last_good::LastGood;
use crate::clock::read_boot_nanos;
use crate::rules::Library;

/// The age of the rules in force, and the file that they are stored in once they are old enough.
#[derive(Debug, Default)]
pub(super) struct ProvenRules {
    /// The file of the proven rules; `None`: this daemon stores no state.
    pub(super) file: Option<LastGood>,
    after: Duration,
    /// The time at which the rules took effect, in ns of the boot-time clock; `None` once they are stored.
    since: Option<u64>,
    is_after_crash_loop: AfterCrashLoop,
}

/// Whether the proven rules are in force because of a crash loop. Shared with the operators' pages.
pub(super) type AfterCrashLoop = Arc<AtomicBool>;

impl ProvenRules {
    /// Makes a proof; rules are proven after `after` in force.
    pub(super) fn new(
        file: Option<LastGood>,
        after: Duration,
        is_after_crash_loop: AfterCrashLoop,
    ) -> ProvenRules {
        ProvenRules { file, after, since: None, is_after_crash_loop }
    }

    pub(super) fn is_after_crash_loop(&self) -> bool {
        self.is_after_crash_loop.load(Ordering::Relaxed)
    }

    /// Marks that the rules of the files are in force again.
    pub(super) fn files_are_read(&self) {
        self.is_after_crash_loop.store(false, Ordering::Relaxed);
    }

    /// Restarts the age, as other rules are in force.
    pub(super) fn begin(&mut self) {
        self.since = self.file.is_some().then(read_boot_nanos);
    }

    /// Returns the time until the rules in force are proven; `None`: there is nothing to store.
    pub(super) fn left(&self) -> Option<Duration> {
        let age = Duration::from_nanos(read_boot_nanos().saturating_sub(self.since?));
        Some(self.after.saturating_sub(age))
    }

    /// Stores the rules. After a failure it is retried once `after` has passed again.
    pub(super) fn keep(&mut self, library: &Library) {
        let is_kept = self.file.as_mut().is_none_or(|file| file.write(library));
        self.since = (!is_kept).then(read_boot_nanos);
    }
}
