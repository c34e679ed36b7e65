//! Switches and blocks of operators in the running daemon: restored at the start, written on every change,
//! logged when they expire. A thread checks twice a second, also for the kill switch without a command: while a file named
//! `disable` exists, everything is allowed. Its owner decides whether it counts; it is never opened.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::helpers::Helpers;
use super::last_good::AfterCrashLoop;
use super::log_queue::LogQueue;
use super::watch::ReloadSignal;
use crate::admin::{ChangeLedger, DaemonControl, ProcessRecord, ReloadResult, RulesRecord};
use crate::clock::Clock;
use crate::engine::{Engine, FleetChange, HostOverrides};
use crate::fleet::task::OverridesHandle;
use crate::host::read_resident_bytes;
use crate::server::{LOCK_MARK, SocketFile, ThreadHealth};
use crate::state::{
    ASIDE, SWITCHES_VERSION, SnapshotStats, StateFile, SwitchesRead, UnreadableSwitches, read_switches,
    set_aside, write_switches, write_whole,
};
use crate::terms::without_number;

#[derive(Debug)]
pub(super) struct SwitchesStore {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    ledger: Arc<ChangeLedger>,
    /// The files of switches and blocks, and of the fleet overrides; `None` without a state directory.
    files: Option<(PathBuf, PathBuf)>,
    written: Mutex<SwitchesSnapshot>,
    disable_file: Mutex<Option<PathBuf>>,
    record: Arc<SnapshotStats>,
}

/// The content of the file, and the offset of the wall clock at the time: the file has Unix times.
#[derive(Debug)]
struct SwitchesSnapshot {
    overrides: HostOverrides,
    utc: i64,
    document: Arc<[u8]>,
}

impl SwitchesStore {
    /// Restores the switches and blocks in an engine that has no rules yet.
    pub(super) fn start(
        engine: &Arc<Engine>,
        clock: &Arc<Clock>,
        ledger: &Arc<ChangeLedger>,
        files: Option<(PathBuf, PathBuf)>,
        record: &Arc<SnapshotStats>,
    ) -> SwitchesStore {
        let overrides = files.as_ref().map(|(file, _)| read(file, clock, record)).unwrap_or_default();
        for switch in &overrides.switches {
            info!(by = %switch.by, "still switched: {} is {}", switch.target, switch.mode);
        }
        let blocked = overrides.blocks.len();
        if blocked > 0 {
            info!(blocked, "keys are still blocked by hand");
        }
        engine.restore_operator_overrides(overrides.clone());
        SwitchesStore {
            engine: Arc::clone(engine),
            clock: Arc::clone(clock),
            ledger: Arc::clone(ledger),
            files,
            written: Mutex::new(SwitchesSnapshot {
                overrides,
                utc: clock.now().utc_offset_nanos,
                document: Arc::default(),
            }),
            disable_file: Mutex::default(),
            record: Arc::clone(record),
        }
    }

    /// Writes the switches and blocks if they differ from the file, or if the wall clock was stepped since. An error is the
    /// reason why they are not stored, with its help.
    pub(super) fn keep(&self) -> Result<(), String> {
        let kept = self.write();
        let failure = kept.as_ref().err().filter(|_| self.files.is_some());
        self.record.tried_switches(failure.map(String::as_str));
        kept
    }

    fn write(&self) -> Result<(), String> {
        let mut written = self.written.lock();
        self.keep_overrides(&mut written)?;
        let (overrides, now) = (self.engine.operator_overrides(), self.clock.now());
        let is_stepped = now.utc_offset_nanos.abs_diff(written.utc) > STEP_MIN_NANOS
            && overrides != HostOverrides::default();
        // A file that was removed is written again.
        let is_lost = overrides != HostOverrides::default()
            && self.files.as_ref().is_some_and(|(path, _)| !path.exists());
        if written.overrides == overrides && !is_stepped && !is_lost {
            return Ok(());
        }
        let (path, _) = self.files.as_ref().ok_or(NO_STATE)?;
        match write_switches(path, &overrides, now) {
            Ok(()) => {
                (written.overrides, written.utc) = (overrides, now.utc_offset_nanos);
                Ok(())
            }
            Err(error) => {
                let has_earlier = written.overrides != HostOverrides::default();
                let earlier =
                    if has_earlier { ", and the switches and blocks stored before return" } else { "" };
                Err(lost(earlier, &path.display().to_string(), &error))
            }
        }
    }

    /// Writes the document of fleet overrides, so that this host accepts no older one after a restart.
    fn keep_overrides(&self, written: &mut SwitchesSnapshot) -> Result<(), String> {
        let document = self.engine.fleet_overrides().document;
        let is_lost = !document.is_empty() && self.files.as_ref().is_some_and(|(_, path)| !path.exists());
        if document == written.document && !is_lost {
            return Ok(());
        }
        let (_, path) = self.files.as_ref().ok_or(NO_STATE)?;
        write_whole(path, &document).map_err(|error| lost("", StateFile::Overrides.name(), &error))?;
        written.document = document;
        Ok(())
    }

    /// Adds the thread that checks twice a second for expired switches and for the file that disables everything. The first
    /// check is done before this returns.
    pub(super) fn watch(self: &Arc<SwitchesStore>, socket: &Path, helpers: &Helpers) {
        let mut files = DisableFiles::new(socket);
        let mut logged = None;
        self.look_for_file(&mut files);
        let kept = Arc::clone(self);
        let work = move || {
            loop {
                std::thread::sleep(LOOK_EVERY);
                // A hanging file system blocks this thread alone, which is not joined at exit.
                kept.look_for_file(&mut files);
                kept.ledger.enter_events(&kept.engine, kept.clock.now());
                let failure = kept.keep().err().filter(|_| kept.files.is_some());
                if let Some(failure) = failure.as_ref().filter(|failure| logged.as_ref() != Some(*failure)) {
                    error!("switches and blocks cannot be stored: {failure}");
                }
                logged = failure;
            }
        };
        helpers.add("switches", "the `disable` file has no effect and ends of switches are not kept", work);
    }

    fn look_for_file(&self, files: &mut DisableFiles) {
        let found = files.look();
        *self.disable_file.lock() = found.map(Path::to_owned);
        if found.is_some() == self.engine.is_off() {
            return;
        }
        self.engine.set_off(found.is_some());
        let what = match found {
            Some(path) => {
                let path = path.display();
                warn!(%path, "EVERYTHING IS ALLOWED as long as this file is there");
                format!("switched everything off: {path} is there")
            }
            None => "switched everything on again: no file says otherwise".to_owned(),
        };
        self.ledger.enter("file", &what, self.clock.now());
    }
}

fn lost(earlier: &str, file: &str, error: &std::io::Error) -> String {
    let error = without_number(error);
    format!("lost when the daemon ends{earlier}: {file}: {error}: make room there, or let the daemon write")
}

fn read(path: &Path, clock: &Clock, record: &SnapshotStats) -> HostOverrides {
    let shown = path.display();
    let unreadable = match read_switches(path, clock.now()) {
        Ok(SwitchesRead { overrides, version, not_understood }) => {
            if version != SWITCHES_VERSION {
                info!(path = %shown, version, "another version of tidegate wrote these switches and blocks: they hold");
            }
            if not_understood > 0 {
                record.found_bad(StateFile::Switches);
                keep_aside(path, not_understood);
            }
            return overrides;
        }
        Err(unreadable) => unreadable,
    };
    record.found_bad(StateFile::Switches);
    match unreadable {
        UnreadableSwitches::Io(error) => {
            warn!(path = %shown, error = %without_number(&error), "earlier switches and blocks cannot be read: let the daemon read the file");
        }
        UnreadableSwitches::Damaged(reason) => match set_aside(path) {
            Ok(aside) => {
                let aside = aside.display();
                warn!(%aside, reason, "earlier switches and blocks are lost: the file is set aside");
            }
            Err(error) => {
                warn!(path = %shown, reason, error = %without_number(&error), "earlier switches and blocks are lost");
            }
        },
    }
    HostOverrides::default()
}

/// Links the file aside, as the next write drops the entries that are not understood.
fn keep_aside(path: &Path, not_understood: usize) {
    let aside = path.with_added_extension(ASIDE);
    let _ = std::fs::remove_file(&aside);
    let kept = std::fs::hard_link(path, &aside);
    let (shown, help) =
        (aside.display(), "see `tidegate switch` for the switches in force, and repeat the others");
    error!(
        entries = not_understood, aside = %shown, is_kept = kept.is_ok(),
        "another version of tidegate wrote switches or blocks that this one does not know: {help}"
    );
}

const NO_STATE: &str = "lost when the daemon ends: there is no state directory of its own, set `state`";

/// A file takes effect within a second even on a busy host.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The wall clock drifts by less than this.
const STEP_MIN_NANOS: u64 = 1_000_000_000;

/// The files that disable everything: beside the settings and beside the client socket.
#[derive(Debug)]
struct DisableFiles {
    /// Each path, with the result of the last look at it.
    watched: Vec<(PathBuf, DisableFileState)>,
    own_uid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DisableFileState {
    Nothing,
    Ours,
    /// A file that does not count, with the reason.
    NotOurs(&'static str),
}

impl DisableFiles {
    fn new(socket: &Path) -> DisableFiles {
        let paths = [Path::new(SETTINGS_DIRECTORY).join(NAME), socket.with_file_name(NAME)];
        let mut watched = Vec::from(paths.map(|path| (path, DisableFileState::Nothing)));
        watched.dedup();
        DisableFiles { watched, own_uid: rustix::process::geteuid().as_raw() }
    }

    /// Returns the first file that exists and counts. A file that does not count is logged once.
    fn look(&mut self) -> Option<&Path> {
        for (path, seen) in &mut self.watched {
            // Links are not followed, as another user may choose their target.
            let now = match std::fs::symlink_metadata(&path) {
                Ok(found) => judge(&found, self.own_uid),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    DisableFileState::Nothing
                }
                // Unknown: the last result stays.
                Err(_) => continue,
            };
            if let DisableFileState::NotOurs(reason) = now
                && *seen != now
            {
                warn!(path = %path.display(), reason, "this file switches nothing off");
            }
            *seen = now;
        }
        self.watched.iter().find(|(_, seen)| *seen == DisableFileState::Ours).map(|(path, _)| &**path)
    }
}

fn judge(found: &std::fs::Metadata, own_uid: u32) -> DisableFileState {
    if !found.is_file() {
        DisableFileState::NotOurs("it is no regular file: `touch` one")
    } else if found.uid() != 0 && found.uid() != own_uid {
        DisableFileState::NotOurs("it belongs neither to root nor to the daemon's user: chown it")
    } else if found.nlink() != 1 {
        DisableFileState::NotOurs("it has a second name, and may be anybody's: remove it and `touch` one")
    } else if found.mode() & LOCK_MARK != 0 {
        DisableFileState::NotOurs("it is the lock of a socket under another name: remove it and `touch` one")
    } else {
        DisableFileState::Ours
    }
}

const NAME: &str = "disable";

const SETTINGS_DIRECTORY: &str = "/etc/tidegate";

pub(super) struct Daemon {
    pub(super) record: Arc<Mutex<RulesRecord>>,
    pub(super) reload_signal: ReloadSignal,
    pub(super) switches: Arc<SwitchesStore>,
    /// Changes the fleet overrides; `None`: the settings name no Redis.
    pub(super) fleet: Option<OverridesHandle>,
    pub(super) log: Arc<LogQueue>,
    pub(super) helpers: Helpers,
    pub(super) after_crash_loop: AfterCrashLoop,
    pub(super) shutdown: CancellationToken,
    pub(super) pulse: Arc<ThreadHealth>,
    pub(super) clock: Arc<Clock>,
    pub(super) socket: Arc<SocketFile>,
}

impl DaemonControl for Daemon {
    fn rules(&self) -> RulesRecord {
        self.record.lock().clone()
    }

    fn process(&self) -> ProcessRecord {
        ProcessRecord {
            resident_bytes: read_resident_bytes(Path::new("/")).unwrap_or_default(),
            log_lines_dropped: self.log.dropped(),
            threads: self.helpers.record(),
            is_after_crash_loop: self.after_crash_loop.load(Ordering::Relaxed),
        }
    }

    fn reload(&self) -> Result<ReloadResult, String> {
        let answer = self.reload_signal.request_result();
        answer.recv_timeout(RELOAD_PATIENCE).map_err(|_| {
            "the rules are still being read: the log and `tidegate status` will show the result".to_owned()
        })
    }

    fn keep(&self) -> Result<(), String> {
        self.switches.keep()
    }

    fn disable_file(&self) -> Option<String> {
        self.switches.disable_file.lock().as_ref().map(|path| path.display().to_string())
    }

    fn change_fleet_overrides(&self, change: FleetChange) -> Result<bool, String> {
        let alone = "this host shares nothing with others: name a Redis and a fleet secret in `redis` of the settings, or see `tidegate status` if they are there";
        self.fleet.as_ref().ok_or(alone)?.change(change)
    }

    fn unready(&self) -> Vec<String> {
        let draining = self.shutdown.is_cancelled();
        let draining = draining.then(|| "it drains: another daemon is to follow".to_owned());
        let silent = self.pulse.check_ages(self.clock.now().at).filter_map(|(name, age)| match age {
            None => Some(format!("the thread `{name}` has not begun yet")),
            Some(age) => (age > SILENCE_MAX)
                .then(|| format!("the thread `{name}` does not answer: the watchdog of systemd restarts it")),
        });
        let (started, wanted) = self.pulse.thread_counts();
        let few = (started < wanted).then(|| {
            format!("{started} of {wanted} decision threads run: raise TasksMax of the unit and restart")
        });
        let after_crash_loop = self.after_crash_loop.load(Ordering::Relaxed).then(|| {
            "the daemon was in a crash loop: it uses the last rules that ran for a minute, and its state is set aside; help: \
             fix the rules, then run `tidegate reload`"
                .to_owned()
        });
        let of_server = draining.into_iter().chain(silent).chain(few).chain(self.socket.obstacle());
        of_server.chain(self.helpers.missing()).chain(after_crash_loop).collect()
    }
}

/// A thread at work beats several times a second.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A reading waits until the files stop changing; directories may be large and disks slow.
const RELOAD_PATIENCE: Duration = Duration::from_secs(30);
