//! Watches the rules and has them read again when they change, on a thread of its own: no decision waits for it. By
//! the kernel's word where there is one, else by looking every few seconds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tracing::warn;

use super::places::Places;
use super::rules_in_force::RulesInForce;
use crate::clock::boot_nanos;
use crate::rules::{Fingerprint, glance};

/// Starts watching the rules; whoever holds the bell can have them read at once.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn watch(rules: RulesInForce) -> std::io::Result<Bell> {
    let (wake, woken) = sync_channel(1);
    let bell = Bell { wake, asked: Arc::default(), moved: Arc::default() };
    let thread = Thread { watching: Watching::new(bell.clone()), rules, bell: bell.clone(), woken };
    // Not joined at the end: a daemon that drains does not wait for rules.
    std::thread::Builder::new().name("rules".into()).spawn(move || thread.run())?;
    Ok(bell)
}

/// Wakes the thread. Rung ten times while it reads, it reads once more.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    wake: SyncSender<()>,
    /// By somebody, who wants an answer in the log even if nothing changed.
    asked: Arc<AtomicBool>,
    /// A directory that is watched may not be the one it was.
    moved: Arc<AtomicBool>,
}

impl Bell {
    /// Has the rules read again, whatever they hold.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.ring();
    }

    fn ring(&self) {
        // Full: it has been rung already.
        let _ = self.wake.try_send(());
    }

    /// What the kernel tells. Called on a thread of the watcher.
    fn hear(&self, places: &Places, event: notify::Result<Event>) {
        let Ok(event) = event else {
            self.moved.store(true, Ordering::SeqCst);
            return self.ring();
        };
        let only_looked_at = match event.kind {
            EventKind::Access(access) => access != AccessKind::Close(AccessMode::Write),
            _ => false,
        };
        let concerned = event.paths.iter().any(|path| places.concern(path));
        if event.need_rescan() || (!only_looked_at && concerned) {
            let moved = event.need_rescan() || event.paths.iter().any(|path| places.is_one(path));
            self.moved.fetch_or(moved, Ordering::SeqCst);
            self.ring();
        }
    }
}

struct Thread {
    rules: RulesInForce,
    watching: Watching,
    bell: Bell,
    woken: Receiver<()>,
}

impl Thread {
    fn run(mut self) {
        loop {
            // Before the files are looked at: what changes from now on rings.
            self.watching.renew(self.rules.path());
            if self.bell.asked.swap(false, Ordering::SeqCst) {
                self.rules.reload();
            } else {
                self.rules.reload_if_outdated();
            }
            if !self.await_change() {
                return;
            }
        }
    }

    /// Waits until something may have changed and the writing is over. False: nobody is left who could ring.
    fn await_change(&mut self) -> bool {
        loop {
            let waited = match (self.watching.polls, self.rules.let_go()) {
                (true, _) => self.woken.recv_timeout(POLL_PERIOD),
                (false, true) => self.woken.recv_timeout(LET_GO_PERIOD),
                (false, false) => self.woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match waited {
                Ok(()) => break,
                Err(RecvTimeoutError::Timeout) if self.watching.sees_a_change(self.rules.path()) => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        // Who asks has written already.
        let begin = boot_nanos();
        while !self.bell.asked.load(Ordering::SeqCst)
            && Duration::from_nanos(boot_nanos().saturating_sub(begin)) < SETTLE_MAX
            && self.woken.recv_timeout(SETTLE).is_ok()
        {}
        true
    }
}

/// What is watched.
struct Watching {
    bell: Bell,
    watcher: Option<RecommendedWatcher>,
    places: Arc<Places>,
    /// The kernel does not tell of everything: look.
    polls: bool,
    /// What was there at the last look.
    seen: Fingerprint,
}

impl Watching {
    fn new(bell: Bell) -> Watching {
        Watching { bell, watcher: None, places: Arc::default(), polls: false, seen: Fingerprint::default() }
    }

    /// Watches where a change would show now.
    fn renew(&mut self, path: &Path) {
        let mut failure = None;
        // What could not be watched before is tried again.
        let mut tried = self.watcher.is_some() && !self.polls;
        for _ in 0..RENEWALS_MAX {
            let places = Places::of(path);
            let moved = self.bell.moved.swap(false, Ordering::SeqCst);
            // The same after they were watched as before: nothing slipped through between.
            if tried && !moved && *self.places == places {
                break;
            }
            self.places = Arc::new(places);
            failure = self.start().err();
            tried = true;
        }
        if let Some(error) = failure.as_ref().filter(|_| !self.polls) {
            let (reason, mend) = (error.to_string(), mend(error));
            warn!(reason, mend, "changes of the rules cannot be watched: looking for them every 2 s");
        }
        self.polls = failure.is_some();
        if self.polls {
            self.seen = glance(path);
        }
    }

    fn start(&mut self) -> notify::Result<()> {
        let (bell, places) = (self.bell.clone(), Arc::clone(&self.places));
        // Before another is made: there are few to be had.
        self.watcher = None;
        let watcher =
            self.watcher.insert(notify::recommended_watcher(move |event| bell.hear(&places, event))?);
        let mut failure = None;
        for (directory, place) in self.places.iter() {
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Err(error) if place.needed => failure = failure.or(Some(error)),
                _ => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn sees_a_change(&self, path: &Path) -> bool {
        self.polls && glance(path) != self.seen
    }
}

fn mend(error: &notify::Error) -> &'static str {
    match &error.kind {
        ErrorKind::MaxFilesWatch => "raise fs.inotify.max_user_watches",
        ErrorKind::Io(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            "raise fs.inotify.max_user_instances, or LimitNOFILE"
        }
        ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "let the user who runs this read the directory and the one it is in"
        }
        _ => "SIGHUP has them read at once",
    }
}

/// Editors write a file in several steps, deployments several files; between two of them passes less.
const SETTLE: Duration = Duration::from_millis(100);

/// Whoever writes without end is not waited for.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Soon enough for a change by hand, and no load: a look at each file's entry.
const POLL_PERIOD: Duration = Duration::from_secs(2);

/// How often replaced rules are tried to be freed. A decision thread lets go of them when it decides next.
const LET_GO_PERIOD: Duration = Duration::from_secs(1);

/// The first one watches, the second one finds that nothing moved meanwhile.
const RENEWALS_MAX: usize = 4;
