//! The helper threads: all work that decisions do not need. They start after the decision threads, are
//! retried when no thread is available, and run again after a panic. No decision waits for one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{error, info, warn};

use crate::admin::ThreadRecord;
use crate::clock::read_boot_nanos;

/// The work of a helper thread. It returns only when the daemon ends, and may be called again after a panic.
pub(super) type HelperWork = Box<dyn FnMut() + Send>;

#[derive(Clone, Default)]
pub(super) struct Helpers(Arc<Mutex<Vec<Arc<Helper>>>>);

struct Helper {
    name: &'static str,
    /// The consequence of the thread not running, for messages.
    without: &'static str,
    /// `None` once a thread has taken it.
    work: Mutex<Option<HelperWork>>,
    phase: AtomicU8,
    restarts: AtomicU64,
    is_reported: AtomicBool,
}

impl Helpers {
    /// Adds a thread of [`ORDER`] for [`Helpers::start`]. `without` is the consequence of its absence.
    pub(super) fn add(&self, name: &'static str, without: &'static str, work: impl FnMut() + Send + 'static) {
        debug_assert!(ORDER.contains(&name), "{name} would start before all others");
        let work: Mutex<Option<HelperWork>> = Mutex::new(Some(Box::new(work)));
        let (phase, restarts) = (AtomicU8::new(WAITING), AtomicU64::new(0));
        let is_reported = AtomicBool::new(false);
        let mut helpers = self.0.lock();
        helpers.push(Arc::new(Helper { name, without, work, phase, restarts, is_reported }));
        helpers.sort_by_key(|helper| ORDER.iter().position(|name| *name == helper.name));
    }

    /// Starts every thread that does not run yet, in the order of [`ORDER`]. Returns whether all run.
    pub(super) fn start(&self) -> bool {
        let helpers = self.0.lock().clone();
        let started = helpers.iter().filter(|helper| Helper::start(helper)).count();
        started == helpers.len()
    }

    pub(super) fn start_one(&self, name: &str) {
        let helper = self.0.lock().iter().find(|helper| helper.name == name).cloned();
        if let Some(helper) = helper {
            Helper::start(&helper);
        }
    }

    /// Waits until the work of every thread that was stopped has ended, of these names, for [`END_MAX`] at most.
    pub(super) fn await_end(&self, names: &[&str]) {
        let begin = read_boot_nanos();
        let helpers = self.0.lock().clone();
        let is_running = |helper: &Arc<Helper>| {
            names.contains(&helper.name) && helper.phase.load(Ordering::Relaxed) == RUNNING
        };
        while helpers.iter().any(is_running)
            && Duration::from_nanos(read_boot_nanos().saturating_sub(begin)) < END_MAX
        {
            std::thread::sleep(END_LOOK);
        }
    }

    pub(super) async fn keep_starting(self) {
        let mut pause = START_AGAIN_MIN;
        while !self.start() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(START_AGAIN_MAX);
        }
    }

    pub(super) fn record(&self) -> Vec<ThreadRecord> {
        let record = |helper: &Arc<Helper>| ThreadRecord {
            name: helper.name,
            is_running: helper.phase.load(Ordering::Relaxed) == RUNNING,
            restarts: helper.restarts.load(Ordering::Relaxed),
        };
        self.0.lock().iter().map(record).collect()
    }

    /// Returns the consequences of threads that do not run, one line each.
    pub(super) fn missing(&self) -> Vec<String> {
        let missing = |helper: &Arc<Helper>| {
            let Helper { name, without, .. } = &**helper;
            match helper.phase.load(Ordering::Relaxed) {
                WAITING => Some(format!(
                    "the thread `{name}` cannot be started, so {without}: raise TasksMax of the unit; it is tried again"
                )),
                PANICKED => Some(format!(
                    "the thread `{name}` panicked, so {without}: it is run again; the log says where, please report it"
                )),
                _ => None,
            }
        };
        self.0.lock().iter().filter_map(missing).collect()
    }
}

impl Helper {
    fn start(this: &Arc<Helper>) -> bool {
        if this.phase.load(Ordering::Relaxed) != WAITING {
            return true;
        }
        let helper = Arc::clone(this);
        let Helper { name, without, .. } = &**this;
        match std::thread::Builder::new().name((*name).into()).spawn(move || helper.run()) {
            Ok(_) => {
                // The thread may have ended by now.
                let _ = this.phase.compare_exchange(WAITING, RUNNING, Ordering::Relaxed, Ordering::Relaxed);
                if this.is_reported.swap(false, Ordering::Relaxed) {
                    info!(thread = name, "the thread could be started");
                }
                true
            }
            Err(error) => {
                if !this.is_reported.swap(true, Ordering::Relaxed) {
                    warn!(thread = name, %error, "a thread cannot be started, so {without}: raise TasksMax of the unit; it is tried again");
                }
                false
            }
        }
    }

    fn run(&self) {
        let Some(mut work) = self.work.lock().take() else { return };
        let mut pause = RUN_AGAIN_MIN;
        loop {
            self.phase.store(RUNNING, Ordering::Relaxed);
            let begin = read_boot_nanos();
            let run = catch_unwind(AssertUnwindSafe(|| {
                #[cfg(all(debug_assertions, feature = "test-hooks"))]
                self.panic_if_requested();
                work();
            }));
            let Err(payload) = run else { break };
            // The destructor of the payload may panic as well.
            std::mem::forget(payload);
            self.phase.store(PANICKED, Ordering::Relaxed);
            self.restarts.fetch_add(1, Ordering::Relaxed);
            if Duration::from_nanos(read_boot_nanos().saturating_sub(begin)) > RUN_AGAIN_MAX {
                pause = RUN_AGAIN_MIN;
            }
            let (thread, without) = (self.name, self.without);
            error!(thread, after = ?pause, "a thread panicked, so {without}: it is run again");
            std::thread::sleep(pause);
            pause = (pause * 2).min(RUN_AGAIN_MAX);
        }
        self.phase.store(ENDED, Ordering::Relaxed);
    }

    /// Panics the first time if the environment names this thread (builds for tests only).
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    fn panic_if_requested(&self) {
        let requested = std::env::var("TIDEGATE_DEBUG_PANIC").unwrap_or_default();
        let is_requested = requested.split(',').any(|name| name == self.name);
        assert!(!is_requested || self.restarts.load(Ordering::Relaxed) > 0, "asked to panic");
    }
}

/// Ends the daemon by a panic (`main`), or by the abort after a panic in a destructor (`abort`), if the
/// environment requests it (builds for tests only).
#[cfg(all(debug_assertions, feature = "test-hooks"))]
pub(super) fn crash_if_requested() {
    struct PanicsAgain(bool);
    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            assert!(!self.0 || !std::thread::panicking(), "asked to abort");
        }
    }
    let requested = std::env::var("TIDEGATE_DEBUG_PANIC").unwrap_or_default();
    let _again = PanicsAgain(requested == "abort");
    assert!(requested != "main" && requested != "abort", "asked to panic");
}

/// The order of starting, for hosts without enough threads: a service manager without notifications ends the
/// daemon, while the log works without its thread.
const ORDER: [&str; 11] =
    ["notify", "rules", "admin", "state", "switches", "sync", "sampler", "http", "resp", "envoy", "log"];

/// Not started yet.
const WAITING: u8 = 0;
const RUNNING: u8 = 1;
/// Between a panic and the next run.
const PANICKED: u8 = 2;
/// The work is done; the daemon ends.
const ENDED: u8 = 3;

/// A thread that removes the path of its socket may run only after hundreds of milliseconds on a busy machine.
const END_MAX: Duration = Duration::from_millis(300);
const END_LOOK: Duration = Duration::from_millis(1);

/// Short enough that one panic hardly matters, long enough that a thread that always panics costs little.
const RUN_AGAIN_MIN: Duration = Duration::from_millis(100);
const RUN_AGAIN_MAX: Duration = Duration::from_secs(30);

/// A thread limit is either raised by people, or reached for a moment.
const START_AGAIN_MIN: Duration = Duration::from_secs(1);
const START_AGAIN_MAX: Duration = Duration::from_secs(30);
