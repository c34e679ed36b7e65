//! Restores the state that the previous daemon left: the engine with its tables, and the clock. If the state
//! is unusable, an empty engine is made.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::file_owners;
use super::helpers::Helpers;
use super::last_good::{AfterCrashLoop, LastGood, ProvenRules};
use super::settings::Settings;
use crate::clock::{Clock, Micros};
use crate::engine::{Engine, EngineOptions, HashKey};
use crate::state::{
    CRASH_LOOP_ENDS, CRASH_LOOP_SPAN, Crashes, Directory, Moment, SnapshotError, SnapshotKeeper, SnapshotKey,
    SnapshotStats, StateFile, file_bytes_max, keep_evidence, open_regular, read_tables, set_aside,
    write_whole,
};
use crate::sys;
use crate::terms::without_number;

/// The restored state, before the first request.
#[derive(Debug)]
pub(super) struct RestoredState {
    pub(super) engine: Arc<Engine>,
    pub(super) clock: Arc<Clock>,
    directory: Option<Directory>,
    boot_id: PathBuf,
    pub(super) record: Arc<SnapshotStats>,
    /// Whether the proven rules are in force, after a crash loop.
    pub(super) is_after_crash_loop: AfterCrashLoop,
}

impl RestoredState {
    /// Restores the state. `boot_id` is the file with the boot id. Fails if the kernel provides no random numbers.
    pub(super) fn take_up(settings: &Settings, boot_id: &Path) -> std::io::Result<RestoredState> {
        let (new_key, first_lease) = (sys::random_bytes()?, u64::from_le_bytes(sys::random_bytes()?));
        let state = settings.state.as_deref();
        state.into_iter().for_each(file_owners::warn_of_state);
        let mut directory = state.map(|path| Directory::take(path, SnapshotKey(new_key)));
        let key = directory.as_ref().map_or(SnapshotKey(new_key), |directory| directory.key);
        let record = Arc::new(SnapshotStats::default());
        let here = Moment::here(boot_id);
        let own = directory.as_mut().and_then(|directory| (!directory.is_anothers()).then_some(&*directory));
        let crashes = own.and_then(|directory| open_crashes(directory, &here));
        let is_loop = crashes.is_some_and(Crashes::is_loop);
        if let (Some(directory), Some(crashes), true) = (own, crashes, is_loop) {
            leave_crash_loop(directory, crashes);
        }
        let taken = own.and_then(|directory| read(settings, directory, &here, &record));
        let (engine, clock) = taken.unwrap_or_else(|| (new_engine(settings, key), Clock::start()));
        engine.number_leases_from(first_lease);
        let (engine, clock) = (Arc::new(engine), Arc::new(clock));
        let (boot_id, is_after_crash_loop) = (boot_id.to_owned(), Arc::new(AtomicBool::new(is_loop)));
        Ok(RestoredState { engine, clock, directory, boot_id, record, is_after_crash_loop })
    }

    /// Returns the state directory, unless there is none or another daemon uses it.
    pub(super) fn own_directory(&mut self) -> Option<&mut Directory> {
        self.directory.as_mut().and_then(|directory| (!directory.is_anothers()).then_some(directory))
    }

    /// Returns the file of the last good rules, if this daemon stores state.
    pub(super) fn last_good_rules(&mut self) -> Option<LastGood> {
        let record = Arc::clone(&self.record);
        Some(LastGood::at(self.own_directory()?, StateFile::Rules, record))
    }

    /// Returns the proof of the rules, which are proven after `after`, with its file if crashes are recorded.
    pub(super) fn proof(&mut self, after: Duration) -> ProvenRules {
        let record = Arc::clone(&self.record);
        let directory = self.directory.as_ref().filter(|_| CRASHES.get().is_some());
        let file = directory.map(|directory| LastGood::at(directory, StateFile::ProvenRules, record));
        let is_after_crash_loop = Arc::clone(&self.is_after_crash_loop);
        ProvenRules { file, after, since: None, is_after_crash_loop }
    }

    /// Returns the files of switches and blocks and of the fleet overrides, if this daemon stores state.
    pub(super) fn switches(&mut self) -> Option<(PathBuf, PathBuf)> {
        let directory = self.own_directory()?;
        // Keys blocked by hand are stored as digests, so their secret must survive any end of this daemon.
        // The writer of the tables reports errors of writing it.
        let _ = directory.prepare();
        Some((directory.path_of(StateFile::Switches), directory.path_of(StateFile::Overrides)))
    }

    /// Sets that document aside, as the fleet secret does not authenticate it.
    pub(super) fn set_overrides_aside(&self) {
        self.record.found_bad(StateFile::Overrides);
        let Some(directory) = &self.directory else { return };
        let path = directory.path_of(StateFile::Overrides);
        let moved = set_aside(&path);
        let help =
            "they hold again once Redis answers, unless this host has a wrong secret; see `tidegate fleet`";
        error!(path = %path.display(), is_kept = moved.is_ok(), "the fleet secret does not authenticate the fleet overrides kept here: {help}");
    }

    pub(super) fn keep(self, every: Duration, helpers: &Helpers) -> Option<SnapshotKeeper> {
        let RestoredState { engine, clock, directory, boot_id, record, .. } = self;
        let (keeper, work) = SnapshotKeeper::new(directory?, engine, clock, boot_id, every, record);
        helpers.add("state", "no state is kept for a restart", work);
        Some(keeper)
    }
}

fn new_engine(settings: &Settings, key: SnapshotKey) -> Engine {
    Engine::new(EngineOptions {
        hash_key: HashKey::from_bytes(key.0),
        mode: settings.mode,
        memory_bytes_max: usize::try_from(settings.memory_max_bytes).unwrap_or(usize::MAX),
    })
}

/// Reads the tables, or sets them aside.
fn read(
    settings: &Settings,
    directory: &Directory,
    here: &Moment,
    record: &SnapshotStats,
) -> Option<(Engine, Clock)> {
    let engine = new_engine(settings, directory.key);
    let bytes_max = file_bytes_max(settings.memory_max_bytes);
    match read_tables(&directory.path_of(StateFile::Tables), directory.key, &engine, here, bytes_max) {
        Ok(back) => {
            let (entries, passed) = (back.entries, Micros::from(back.passed));
            let sessions = engine.leases().sessions;
            info!(entries, sessions, after = %passed, "restored the state of the last daemon");
            if !back.is_final {
                warn!(
                    "the last daemon wrote no tables at its end: tokens admitted since the last write are admitted again"
                );
            }
            Some((engine, Clock::resume(back.at, here.boot_nanos)))
        }
        Err(SnapshotError::Unreadable(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            info!(path = %directory.path.display(), "there is no snapshot: every caller starts fresh");
            None
        }
        Err(useless) => {
            record.found_bad(StateFile::Tables);
            tables_aside(directory, &useless);
            None
        }
    }
}

/// Opens the record of panics and aborts.
fn open_crashes(directory: &Directory, here: &Moment) -> Option<&'static Crashes> {
    let path = directory.path.join("crashes");
    let opened = Crashes::open(&path, here);
    opened
        .inspect_err(|error| debug!(path = %path.display(), %error, "a crash loop would not be noticed"))
        .ok()
        .map(|opened| CRASHES.get_or_init(|| opened))
}

pub(super) fn note_crash() {
    if let Some(crashes) = CRASHES.get() {
        crashes.note();
    }
}

/// Per process, as the daemon may panic while it reads the state.
static CRASHES: OnceLock<Crashes> = OnceLock::new();

/// Sets aside the possible causes of a crash loop as evidence: the tables, and the rules in force. Switches
/// and blocks stay, as operators set them.
fn leave_crash_loop(directory: &Directory, crashes: &Crashes) {
    let (ends, span) = (CRASH_LOOP_ENDS, CRASH_LOOP_SPAN.as_secs());
    error!(
        "CRASH LOOP: this daemon ended {ends} times within {span} s by a panic or an abort: its state is set aside"
    );
    for path in [StateFile::Tables, StateFile::Rules].map(|file| directory.path_of(file)) {
        match keep_evidence(&path) {
            Ok(Some(aside)) => {
                warn!(aside = %aside.display(), "evidence of the crash loop: please report it");
            }
            Ok(None) => {}
            Err(error) => {
                warn!(path = %path.display(), error = %without_number(&error), "it cannot be set aside");
            }
        }
    }
    // Not a plain copy, which would wait for a pipe and make another user's file one of this daemon.
    let mut proven = Vec::new();
    let read = open_regular(&directory.path_of(StateFile::ProvenRules))
        .and_then(|mut file| file.read_to_end(&mut proven));
    if let Err(error) = read.and_then(|_| write_whole(&directory.path_of(StateFile::Rules), &proven)) {
        debug!(error = %without_number(&error), "no rules are kept for a start at which their files have errors");
    }
    if let Err(error) = crashes.forget() {
        warn!(error = %without_number(&error), "the notes of the crash loop stay, so that the next start does the same");
    }
}

fn tables_aside(directory: &Directory, useless: &SnapshotError) {
    let path = directory.path_of(StateFile::Tables);
    let moved = set_aside(&path);
    let path = path.display();
    match moved {
        Ok(aside) => {
            let aside = aside.display();
            error!(%path, %aside, "the snapshot cannot be used: {useless}; it is set aside: {BEGINS_ANEW}");
        }
        Err(error) => {
            let error = without_number(&error);
            error!(%path, "the snapshot cannot be used: {useless}: {BEGINS_ANEW}. It cannot be set aside: {error}");
        }
    }
}

const BEGINS_ANEW: &str =
    "all limits, leases and blocks by rules begin anew; switches, blocks by hand and rules stay";
