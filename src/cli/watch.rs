//! Watches the rules and has them read again when they change, on a thread of its own: no decision waits for it. By
//! the kernel's word where there is one, else by looking every few seconds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tracing::warn;

use super::places::Places;
use super::rules_in_force::RulesInForce;
use super::service_manager::ServiceManager;
use crate::admin::Reloaded;
use crate::clock::boot_nanos;
use crate::rules::{Fingerprint, glance};

/// Starts watching the rules; whoever holds the bell can have them read at once.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn watch(rules: RulesInForce, manager: ServiceManager) -> std::io::Result<Bell> {
    let (wake, woken) = sync_channel(1);
    let bell = Bell { wake, asked: Arc::default(), moved: Arc::default(), waiting: Arc::default() };
    let thread = Thread { watching: Watching::new(bell.clone()), rules, bell: bell.clone(), woken, manager };
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
    /// Who wants to be told what comes of the next reading.
    waiting: Arc<Mutex<Vec<Sender<Reloaded>>>>,
}

impl Bell {
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
    manager: ServiceManager,
}

impl Thread {
    fn run(mut self) {
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
            if !self.await_change() {
                return;
            }
        }
    }

    /// Waits until something may have changed and the writing is over. False: nobody is left who could ring.
    fn await_change(&mut self) -> bool {
        loop {
            let wanting = self.rules.is_wanting();
            let waited = match (self.watching.polls, self.rules.let_go(), wanting) {
                (true, ..) => self.woken.recv_timeout(POLL_PERIOD),
                (_, true, _) => self.woken.recv_timeout(LET_GO_PERIOD),
                (_, _, true) => self.woken.recv_timeout(RETRY_PERIOD),
                (false, false, false) => self.woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match waited {
                Ok(()) => break,
                // What could not be read for want of a descriptor, say, can be read later without having changed.
                Err(RecvTimeoutError::Timeout) if wanting => return true,
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

/// How often rules with errors, or that could not be kept, are looked at again, changed or not.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// How often replaced rules are tried to be freed. A decision thread lets go of them when it decides next.
const LET_GO_PERIOD: Duration = Duration::from_secs(1);

/// The first one watches, the second one finds that nothing moved meanwhile.
const RENEWALS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::time::Duration;

    use notify::event::{AccessKind, AccessMode, CreateKind, Flag, ModifyKind, RenameMode};
    use notify::{Event, EventKind};

    use super::{Bell, Thread, Watching};
    use crate::cli::places::Places;
    use crate::cli::rules_in_force::RulesInForce;
    use crate::cli::service_manager::ServiceManager;
    use crate::clock::Clock;
    use crate::engine::{Engine, HashKey, Mode, Options};

    fn bell() -> (Bell, Receiver<()>) {
        let (wake, woken) = sync_channel(1);
        (Bell { wake, asked: Arc::default(), moved: Arc::default(), waiting: Arc::default() }, woken)
    }

    #[test]
    fn the_bell_rings_for_what_may_be_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let rules = directory.path().canonicalize().unwrap();
        let places = Places::of(&rules);
        let file = rules.join("a.yaml");
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let closed = |mode| EventKind::Access(AccessKind::Close(mode));
        let table: &[(EventKind, &Path, bool, bool)] = &[
            (EventKind::Create(CreateKind::File), &file, true, false),
            (renamed, &file, true, false),
            (closed(AccessMode::Write), &file, true, false),
            // The daemon opens and closes them itself: it would never come to rest.
            (opened, &file, false, false),
            (closed(AccessMode::Read), &file, false, false),
            (opened, &rules, false, false),
            (renamed, &rules, true, true),
            (renamed, &rules.join(".a.swp"), false, false),
            (renamed, &rules.join("../other"), false, false),
        ];
        for (kind, path, rings, moves) in table {
            let (bell, woken) = bell();
            bell.hear(&places, Ok(Event::new(*kind).add_path((*path).to_owned())));
            assert_eq!(woken.try_recv().is_ok(), *rings, "{kind:?} {}", path.display());
            assert_eq!(bell.moved.load(Ordering::SeqCst), *moves, "{kind:?} {}", path.display());
        }
        // Lost events, lost watches.
        for event in
            [Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan)), Err(notify::Error::generic("x"))]
        {
            let (bell, woken) = bell();
            bell.hear(&places, event);
            assert!(woken.try_recv().is_ok() && bell.moved.load(Ordering::SeqCst));
        }
    }

    fn thread(path: &Path) -> Thread {
        let (bell, woken) = bell();
        let hash_key = HashKey::from_bytes([7; 16]);
        let options = Options { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 };
        let rules = {
            let (engine, clock) = (Arc::new(Engine::new(options)), Arc::new(Clock::start()));
            RulesInForce::start(&engine, &clock, crate::rules::Library::new(path), None, false)
        };
        let manager = ServiceManager::default();
        Thread { rules, watching: Watching::new(bell.clone()), bell, woken, manager }
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
            assert!(thread.await_change());
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
        assert!(thread(directory.path()).await_change());
    }

    #[test]
    fn where_nothing_can_be_watched_it_looks() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        std::fs::write(&file, "domain: api\nlimits: []\n").unwrap();
        let mut watching = Watching::new(bell().0);
        watching.renew(directory.path());
        assert!(!watching.polls && !watching.sees_a_change(directory.path()));
        watching.polls = true;
        watching.seen = crate::rules::glance(directory.path());
        assert!(!watching.sees_a_change(directory.path()));
        std::fs::write(&file, "domain: api\nlimits:  []\n").unwrap();
        assert!(watching.sees_a_change(directory.path()));
        // What could not be watched is tried again.
        watching.renew(directory.path());
        assert!(!watching.polls);
    }
}
