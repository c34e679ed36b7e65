//! Reloads the rules when their files change or on request, on a thread that no decision waits for.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use sd_notify::NotifyState;
use tracing::warn;

use super::helpers::Helpers;
use super::rules_in_force::RulesInForce;
use super::service_manager::ServiceManager;
use super::watching::{DirectoryWatch, OPEN_MAX};
use crate::admin::ReloadResult;
use crate::clock::{Timestamp, read_boot_nanos};
use crate::rules::{OpenFiles, glance};
use crate::server::ThreadHealth;

/// Adds the thread and returns its reload signal. The thread is not joined at exit: a drain does not wait for rules. Fails
/// if no descriptor is left to wake the thread with.
pub(super) fn watch(
    rules: RulesInForce,
    manager: ServiceManager,
    decision_threads: Arc<ThreadHealth>,
    helpers: &Helpers,
) -> std::io::Result<ReloadSignal> {
    let reload_signal = ReloadSignal::new()?;
    let mut thread = WatchThread {
        watching: DirectoryWatch::default(),
        rules,
        reload_signal: reload_signal.clone(),
        manager,
        decision_threads,
    };
    helpers.add("rules", "changes of the rules are not noticed", move || thread.run());
    Ok(reload_signal)
}

/// The reload signal. Signals that come while the thread reads cause one more reading.
#[derive(Clone, Debug)]
pub(super) struct ReloadSignal {
    wake: Arc<OwnedFd>,
    /// Set by an explicit request, which reloads and logs even without changes.
    requested: Arc<AtomicBool>,
    /// The senders that wait for the result of the next reading.
    waiting: Arc<Mutex<Vec<Sender<ReloadResult>>>>,
}

impl ReloadSignal {
    fn new() -> std::io::Result<ReloadSignal> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(ReloadSignal { wake: Arc::new(wake), requested: Arc::default(), waiting: Arc::default() })
    }

    /// Reloads the rules, even without changes.
    pub(super) fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Reloads the rules, even without changes; the receiver gets the result.
    pub(super) fn request_result(&self) -> Receiver<ReloadResult> {
        let (sender, receiver) = channel();
        self.waiting.lock().push(sender);
        self.request();
        receiver
    }

    fn wake(&self) {
        // Fails only if the counter of the eventfd is full.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

struct WatchThread {
    rules: RulesInForce,
    watching: DirectoryWatch,
    reload_signal: ReloadSignal,
    manager: ServiceManager,
    decision_threads: Arc<ThreadHealth>,
}

impl WatchThread {
    /// Runs forever. After a panic it may be run again.
    fn run(&mut self) {
        loop {
            // Before the files are read, so that later changes wake the thread.
            self.watching.renew(self.rules.path());
            let overdue = self.watching.take_overdue(boot_time());
            if self.reload_signal.requested.swap(false, Ordering::SeqCst) {
                self.manager.reloading();
                // Requests from here on follow writes that this reading may miss; they get the next one.
                let waiting = std::mem::take(&mut *self.reload_signal.waiting.lock());
                // An explicit request comes after the writes, so open files are read too.
                self.watching.open.clear();
                let reloaded = self.rules.reload(&OpenFiles::default());
                self.manager.notify(&[NotifyState::Ready]);
                // Fails if the receiver no longer waits.
                waiting.iter().for_each(|sender| drop(sender.send(reloaded.clone())));
            } else {
                self.reload_if_outdated(&overdue);
            }
            self.manager.notify(&[NotifyState::Status(&self.rules.summary())]);
            self.rules.save();
            self.await_change();
        }
    }

    /// Reloads if files have changed, except those that are being written: only their domains wait.
    fn reload_if_outdated(&mut self, overdue: &[PathBuf]) {
        let open = self.watching.open_files();
        if !self.rules.is_outdated_beside(&open) {
            return;
        }
        if let Some(file) = overdue.first() {
            let file = file.display();
            warn!(
                %file,
                "this rules file is still being written after {OPEN_MAX:?}, and is read as it is: replace files by renaming new ones"
            );
        }
        self.rules.reload(&open);
    }

    /// Waits until the files may have changed and the writer has paused, or has kept a file open for too long, or until something
    /// is to be tried again.
    fn await_change(&mut self) {
        loop {
            let unproven = self.rules.prove();
            if self.rules.free_retired() {
                // One that has waited for requests since then holds the rules of its last decision.
                self.decision_threads.wake_all();
            }
            let waits = [unproven, self.watching.until_overdue(boot_time())];
            let within = waits.into_iter().flatten().fold(LOOK_PERIOD, Duration::min);
            if self.watching.wait(self.rules.path(), &self.reload_signal.wake, within) {
                return self.await_pause();
            }
            let is_overdue = self.watching.until_overdue(boot_time()).is_some_and(|left| left.is_zero());
            // The cause of a failed reading, such as a lack of descriptors, may end without new files.
            if is_overdue || self.rules.needs_retry() {
                return;
            }
        }
    }

    /// Waits until no file changes for `SETTLE`, for `SETTLE_MAX` at most. An explicit request comes after the writes, so it
    /// ends the wait.
    fn await_pause(&self) {
        let begin = boot_time();
        while !self.reload_signal.requested.load(Ordering::SeqCst) && boot_time().since(begin) < SETTLE_MAX {
            let before = glance(self.rules.path());
            std::thread::sleep(SETTLE);
            if glance(self.rules.path()) == before {
                return;
            }
        }
    }
}

fn boot_time() -> Timestamp {
    Timestamp::from_nanos(read_boot_nanos())
}

/// Editors write a file in several steps and deployments write several files, with shorter pauses than this.
const SETTLE: Duration = Duration::from_millis(100);

/// The longest wait for writers that do not pause.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Fast enough for changes that the kernel does not report, at little load: each look stats every file. Also the interval of
/// retries: of reading files with errors, of storing rules, and of freeing replaced ones.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
