//! The rules under which the daemon ran for a while: kept for a start after a crash loop, which goes by them and not by the
//! files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::last_good::LastGood;
use crate::clock::boot_nanos;
use crate::rules::Library;

/// How long the rules in force have been there, and where they are kept once that is long enough.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Where they are kept, if this daemon keeps anything.
    pub(super) file: Option<LastGood>,
    after: Duration,
    /// Since when they are in force, by the boot-time clock, unless they are kept already.
    since: Option<u64>,
    is_after_crash_loop: AfterCrashLoop,
}

/// Whether the proven rules are in force, because the daemon was in a crash loop. Shared with the pages of operators.
pub(super) type AfterCrashLoop = Arc<AtomicBool>;

impl Proof {
    /// Rules are proven after they were in force for so long.
    pub(super) fn new(file: Option<LastGood>, after: Duration, is_after_crash_loop: AfterCrashLoop) -> Proof {
        Proof { file, after, since: None, is_after_crash_loop }
    }

    pub(super) fn is_after_crash_loop(&self) -> bool {
        self.is_after_crash_loop.load(Ordering::Relaxed)
    }

    /// The files are read again: from now on it is they that are in force.
    pub(super) fn files_are_read(&self) {
        self.is_after_crash_loop.store(false, Ordering::Relaxed);
    }

    /// Other rules are in force from now on.
    pub(super) fn begin(&mut self) {
        self.since = self.file.is_some().then(boot_nanos);
    }

    /// How long it takes until the rules in force are proven; `None`: they are kept already, or nothing is kept.
    pub(super) fn left(&self) -> Option<Duration> {
        let age = Duration::from_nanos(boot_nanos().saturating_sub(self.since?));
        Some(self.after.saturating_sub(age))
    }

    /// Keeps them. What cannot be kept is tried again after as long.
    pub(super) fn keep(&mut self, library: &Library) {
        let is_kept = self.file.as_mut().is_none_or(|file| file.write(library));
        self.since = (!is_kept).then(boot_nanos);
    }
}
