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

use super::rules_in_force::RulesInForce;
use super::service_manager::ServiceManager;
use super::watching::{DirectoryWatch, OPEN_MAX};
use crate::admin::ReloadResult;
use crate::clock::{Timestamp, read_boot_nanos};
use crate::rules::OpenFiles;
use crate::server::ThreadHealth;

/// Returns the reload signal and the work of the thread. The thread is not joined at exit: a drain does not
/// wait for rules. Fails if no descriptor is left to wake the thread with.
pub(super) fn watch(
    rules: RulesInForce,
    manager: ServiceManager,
    decision_threads: Arc<ThreadHealth>,
) -> std::io::Result<(ReloadSignal, impl FnMut() + Send + 'static)> {
    let reload_signal = ReloadSignal::new()?;
    let mut thread = WatchThread {
        watching: DirectoryWatch::default(),
        rules,
        reload_signal: reload_signal.clone(),
        manager,
        decision_threads,
    };
    Ok((reload_signal, move || thread.run()))
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

    /// Waits until the files may have changed and the writer has paused, or has kept a file open for too long.
    fn await_change(&mut self) {
        loop {
            let needs_retry = self.rules.needs_retry();
            let unproven = self.rules.prove();
            let is_retired_in_use = self.rules.free_retired();
            if is_retired_in_use {
                // One that has waited for requests since then holds the rules of its last decision.
                self.decision_threads.wake_all();
            }
            let within = match (self.watching.polls, is_retired_in_use, needs_retry) {
                (true, ..) => Some(POLL_PERIOD),
                (_, true, _) => Some(FREE_PERIOD),
                (_, _, true) => Some(RETRY_PERIOD),
                (false, false, false) => Some(unproven.unwrap_or(LOST_PERIOD)),
            };
            let until_overdue = self.watching.until_overdue(boot_time());
            let within = within.into_iter().chain(until_overdue).min();
            if self.watching.wait(&self.reload_signal.wake, within) {
                break;
            }
            if self.watching.until_overdue(boot_time()).is_some_and(|left| left.is_zero()) {
                return;
            }
            // The cause of a failed reading, such as a lack of descriptors, may end without new files.
            if needs_retry || self.rules.is_lost() {
                return;
            }
            if self.watching.sees_a_change(self.rules.path()) {
                break;
            }
        }
        // Until the writers have paused.
        let request = &self.reload_signal.requested;
        wait_for_pause(
            boot_time,
            |within| self.watching.wait(&self.reload_signal.wake, Some(within)),
            || request.load(Ordering::SeqCst),
        );
    }
}

fn boot_time() -> Timestamp {
    Timestamp::from_nanos(read_boot_nanos())
}

/// Waits until no change comes for `SETTLE`, for `SETTLE_MAX` at most. An explicit request comes after the writes, so it
/// ends the wait. `changes_within` waits for a change for the given time.
fn wait_for_pause(
    now: impl Fn() -> Timestamp,
    mut changes_within: impl FnMut(Duration) -> bool,
    requested: impl Fn() -> bool,
) {
    let begin = now();
    while !requested() && now().since(begin) < SETTLE_MAX && changes_within(SETTLE) {}
}

/// Editors write a file in several steps and deployments write several files, with shorter pauses than this.
const SETTLE: Duration = Duration::from_millis(100);

/// The longest wait for writers that do not pause.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Fast enough for changes by hand, at little load: each look stats every file.
const POLL_PERIOD: Duration = Duration::from_secs(2);

/// The interval of retries: of reading files with errors, and of storing rules.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// The interval of looks whether the saved rules were removed.
const LOST_PERIOD: Duration = Duration::from_secs(60);

/// The time that decision threads have to release replaced rules before the next attempt to free them.
const FREE_PERIOD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::wait_for_pause;
    use crate::clock::Timestamp;

    /// Returns the milliseconds that `wait_for_pause` waits for a writer with a change each `period_millis`
    /// until `last_change_millis`, if a request comes at `request_millis`.
    fn millis_waited(period_millis: u64, last_change_millis: u64, request_millis: u64) -> u128 {
        let now = Cell::new(Timestamp::ORIGIN);
        let elapsed = || now.get().since(Timestamp::ORIGIN);
        let period = Duration::from_millis(period_millis);
        let changes_within = |within: Duration| {
            let is_change =
                period < within && elapsed() + period <= Duration::from_millis(last_change_millis);
            now.set(now.get().after(if is_change { period } else { within }));
            is_change
        };
        wait_for_pause(|| now.get(), changes_within, || elapsed() >= Duration::from_millis(request_millis));
        elapsed().as_millis()
    }

    #[test]
    fn waits_for_end_of_writes_up_to_a_maximum() {
        let never = u64::MAX;
        assert_eq!(millis_waited(10, 0, never), 100, "no further write");
        assert_eq!(millis_waited(10, 300, never), 400, "writes for 300 ms");
        assert_eq!(millis_waited(99, 495, never), 595, "writes with the longest pauses");
        assert_eq!(millis_waited(10, never, never), 1_000, "writes without end");
        assert_eq!(millis_waited(10, never, 250), 250, "an explicit request after 250 ms");
        assert_eq!(millis_waited(10, never, 0), 0, "an explicit request before");
    }
}
