//! Has the rules read again when they change or a signal asks for it, on a thread of its own: no decision waits for it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::rules_in_force::RulesInForce;
use super::service_manager::ServiceManager;
use super::watching::Watching;
use crate::admin::Reloaded;
use crate::clock::boot_nanos;

/// The watch over the rules: the handle that has them read at once, and the work of the thread. The work is not waited for
/// at the end: a daemon that drains does not wait for rules.
///
/// # Errors
/// No descriptor is left to wake the thread by.
pub(super) fn watch(
    rules: RulesInForce,
    manager: ServiceManager,
) -> std::io::Result<(Bell, impl FnMut() + Send + 'static)> {
    let bell = Bell::new()?;
    let mut thread = Thread { watching: Watching::default(), rules, bell: bell.clone(), manager };
    Ok((bell, move || thread.run()))
}

/// Wakes the thread. Rung ten times while it reads, it reads once more.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    wake: Arc<OwnedFd>,
    /// By somebody, who wants an answer in the log even if nothing changed.
    asked: Arc<AtomicBool>,
    /// Who wants to be told what comes of the next reading.
    waiting: Arc<Mutex<Vec<Sender<Reloaded>>>>,
}

impl Bell {
    fn new() -> std::io::Result<Bell> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Bell { wake: Arc::new(wake), asked: Arc::default(), waiting: Arc::default() })
    }

    /// Has the rules read again, whatever they hold.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Has the rules read again, whatever they hold, and what comes of it told.
    pub(super) fn ask_for_answer(&self) -> Receiver<Reloaded> {
        let (tell, told) = channel();
        self.waiting.lock().push(tell);
        self.ask();
        told
    }

    fn ring(&self) {
        // It fails when it has been rung 2^64 times and not been heard.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

struct Thread {
    rules: RulesInForce,
    watching: Watching,
    bell: Bell,
    manager: ServiceManager,
}

impl Thread {
    /// For ever. After a panic it may be run again.
    fn run(&mut self) {
        loop {
            // Before the files are looked at: what changes from now on rings.
            self.watching.renew(self.rules.path());
            if self.bell.asked.swap(false, Ordering::SeqCst) {
                self.manager.reloading();
                // Who asks from here on has written after these files were read, and gets the next reading.
                let waiting = std::mem::take(&mut *self.bell.waiting.lock());
                let reloaded = self.rules.reload();
                self.manager.reloaded();
                // Who waits no longer has gone.
                waiting.iter().for_each(|tell| drop(tell.send(reloaded.clone())));
            } else {
                self.rules.reload_if_outdated();
            }
            self.manager.status(self.rules.summary());
            self.rules.keep();
            self.await_change();
        }
    }

    /// Waits until something may have changed and the writing is over.
    fn await_change(&mut self) {
        loop {
            let wanting = self.rules.is_wanting();
            let unproven = self.rules.prove();
            let within = match (self.watching.polls(), self.rules.let_go(), wanting) {
                (true, ..) => Some(POLL_PERIOD),
                (_, true, _) => Some(LET_GO_PERIOD),
                (_, _, true) => Some(RETRY_PERIOD),
                (false, false, false) => Some(unproven.unwrap_or(LOST_PERIOD)),
            };
            if self.watching.wait(&self.bell.wake, within) {
                break;
            }
            // What could not be read for want of a descriptor, say, can be read later without having changed.
            if wanting || self.rules.is_lost() {
                return;
            }
            if self.watching.sees_a_change(self.rules.path()) {
                break;
            }
        }
        // Who asks has written already.
        let begin = boot_nanos();
        while !self.bell.asked.load(Ordering::SeqCst)
            && Duration::from_nanos(boot_nanos().saturating_sub(begin)) < SETTLE_MAX
            && self.watching.wait(&self.bell.wake, Some(SETTLE))
        {}
    }
}

/// Editors write a file in several steps, deployments several files; between two of them passes less.
const SETTLE: Duration = Duration::from_millis(100);

/// Whoever writes without end is not waited for.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Soon enough for a change by hand, and no load: a look at each file's entry.
const POLL_PERIOD: Duration = Duration::from_secs(2);

/// How often rules with errors, or that could not be kept, are looked at again, changed or not.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// The interval of looks whether the saved rules were removed.
const LOST_PERIOD: Duration = Duration::from_secs(60);

/// How often replaced rules are tried to be freed. A decision thread lets go of them when it decides next.
const LET_GO_PERIOD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{Bell, Thread, Watching};
    use crate::clock::Clock;
    use crate::daemon::rules_in_force::RulesInForce;
    use crate::daemon::service_manager::ServiceManager;
    use crate::engine::{Engine, HashKey, Mode, Options};

    fn thread(path: &Path) -> Thread {
        let hash_key = HashKey::from_bytes([7; 16]);
        let options = Options { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 };
        let rules = {
            let (engine, clock) = (Arc::new(Engine::new(options)), Arc::new(Clock::start()));
            RulesInForce::start(&engine, &clock, crate::rules::Library::new(path), Default::default(), false)
        };
        let manager = ServiceManager::default();
        Thread { rules, watching: Watching::default(), bell: Bell::new().unwrap(), manager }
    }

    /// Rings again and again, at most so often, and waits for the end of it meanwhile. How often it had rung by then.
    fn rings_waited_for(thread: &mut Thread, rings_max: usize) -> usize {
        let (rings, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
        let bell = thread.bell.clone();
        std::thread::scope(|scope| {
            bell.ring();
            scope.spawn(|| {
                while rings.load(Ordering::SeqCst) < rings_max && !enough.load(Ordering::SeqCst) {
                    bell.ring();
                    rings.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            thread.await_change();
            enough.store(true, Ordering::SeqCst);
            rings.load(Ordering::SeqCst)
        })
    }

    #[test]
    fn the_end_of_the_writing_is_awaited_but_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let mut thread = thread(directory.path());
        // On a busy machine the one who rings may be held up, or the one who waits.
        assert!((0..10).any(|_| rings_waited_for(&mut thread, 30) == 30));
        assert!(rings_waited_for(&mut thread, usize::MAX) > 30);
        // Who asks has written.
        thread.bell.clone().ask();
        assert!((0..10).any(|_| rings_waited_for(&mut thread, usize::MAX) < 10));
    }

    #[test]
    fn what_could_not_be_read_is_tried_again_without_a_change() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), "domain: api\nlimits: [").unwrap();
        thread(directory.path()).await_change();
    }
}
