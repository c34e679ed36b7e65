//! The state directory: its lock, the key of the digests, the paths of its files, and statistics of them. The daemon runs
//! without it if it is unusable.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use super::files::{OWNER_ONLY, open_no_follow, open_regular, write_whole};
use super::snapshot::SnapshotKey;

/// The state directory of one daemon.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// The key of the digests.
    pub(crate) key: SnapshotKey,
    lock: DirectoryLock,
}

/// The lock file of the directory, once this daemon holds the lock.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectoryLock(Arc<OnceLock<File>>);

impl DirectoryLock {
    /// Releases the lock for the next daemon. Otherwise the kernel releases it when the last thread of this process has
    /// exited, and a slow disk may block one.
    pub(super) fn release(&self) {
        if let Some(lock) = self.0.get() {
            // After an error the kernel releases it at exit.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }
}

impl Directory {
    /// Locks a directory and reads its key; without one, the key is `new_key`. Errors that prevent writing are reported
    /// later, by [`Directory::prepare`].
    ///
    /// Waits up to [`LOCK_WAIT`] for another daemon that is about to exit.
    pub(crate) fn take(path: &Path, new_key: SnapshotKey) -> Directory {
        let mut directory = Directory { path: path.to_owned(), key: new_key, lock: DirectoryLock::default() };
        for _ in 0..LOCK_TRIES {
            match directory.acquire_lock() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(LOCK_WAIT / LOCK_TRIES);
                }
                _ => break,
            }
        }
        if let Some(key) = directory.read_key() {
            directory.key = key;
        }
        directory
    }

    pub(crate) fn path_of(&self, file: StateFile) -> PathBuf {
        self.path.join(file.name())
    }

    pub(super) fn lock(&self) -> DirectoryLock {
        self.lock.clone()
    }

    /// Prepares for writing: acquires the lock and saves the key. `WouldBlock` if another daemon uses the directory.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        self.acquire_lock()?;
        // Read at each write: after the directory was emptied, tables without their key would be of no use.
        if self.read_key().is_none_or(|kept| kept.0 != self.key.0) {
            write_whole(&self.path.join(KEY), &self.key.0)?;
        }
        Ok(())
    }

    /// Whether another daemon uses the directory: then this one must not read it.
    pub(crate) fn is_anothers(&mut self) -> bool {
        self.acquire_lock().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn acquire_lock(&mut self) -> io::Result<()> {
        if self.lock.0.get().is_some() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(OWNER_ONLY);
        let lock = open_no_follow(&self.path.join(LOCK), &mut options)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        // `&mut self` excludes a concurrent `set`.
        let _ = self.lock.0.set(lock);
        Ok(())
    }

    fn read_key(&self) -> Option<SnapshotKey> {
        let mut bytes = Vec::new();
        open_regular(&self.path.join(KEY)).ok()?.take(KEY_BYTES + 1).read_to_end(&mut bytes).ok()?;
        bytes.try_into().ok().map(SnapshotKey)
    }
}

const KEY: &str = "hash-key";

const KEY_BYTES: u64 = 16;

const LOCK: &str = "lock";

/// The time that a drain and the last write take.
const LOCK_WAIT: Duration = Duration::from_millis(1_500);

const LOCK_TRIES: u32 = 75;

/// Statistics of the state directory, for operators.
#[derive(Debug, Default)]
pub struct SnapshotStats(Mutex<SnapshotStatus>);

/// Writes of the snapshot, and unusable files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotStatus {
    /// Snapshots written.
    pub writes: u64,
    /// Failed writes of the snapshot, and failures to write switches.
    pub failures: u64,
    /// Why the switches and blocks are not on disk, if they are not.
    pub switches_unkept: Option<String>,
    /// Unix time of the last snapshot in seconds; 0 if there is none.
    pub last_write: u64,
    /// Size of the last snapshot in bytes.
    pub bytes: u64,
    /// How often each file was unusable at the start, by its name.
    pub bad: BTreeMap<String, u64>,
}

impl Default for SnapshotStatus {
    fn default() -> SnapshotStatus {
        let bad = StateFile::VARIANTS.iter().map(|file| (file.name().to_owned(), 0)).collect();
        SnapshotStatus { writes: 0, failures: 0, switches_unkept: None, last_write: 0, bytes: 0, bad }
    }
}

/// A file of the state directory that a start reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum StateFile {
    /// The snapshot of the engine.
    Tables,
    /// Switches and blocks.
    Switches,
    /// The last good rules.
    Rules,
    /// The newest fleet overrides.
    #[strum(serialize = "fleet-overrides")]
    Overrides,
    /// The last rules under which a daemon ran for a minute.
    #[strum(serialize = "rules-proven")]
    ProvenRules,
}

impl StateFile {
    /// Returns its name in the directory.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

/// Renames an unusable file of the state directory, replacing one that was set aside before. Returns the new path. A file
/// that cannot be renamed is overwritten by the next write.
pub(crate) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_added_extension(ASIDE);
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

/// Renames a file of the state directory as evidence of a crash loop. Returns the new path; `None` if there is no such
/// file. The evidence of the first loop stays until it is removed by hand; that of the latest loop is kept beside it.
pub(crate) fn keep_evidence(path: &Path) -> io::Result<Option<PathBuf>> {
    let first = path.with_added_extension(EVIDENCE);
    let aside = if first.exists() { first.with_added_extension("latest") } else { first };
    match std::fs::rename(path, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl SnapshotStats {
    /// Returns the statistics so far.
    pub fn read(&self) -> SnapshotStatus {
        self.0.lock().clone()
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut SnapshotStatus)) {
        update(&mut self.0.lock());
    }

    /// Records an attempt to write switches and blocks. Counts a failure once for as long as it lasts.
    pub(crate) fn tried_switches(&self, failure: Option<&str>) {
        self.update(|status| {
            status.failures += u64::from(failure.is_some() && status.switches_unkept.is_none());
            status.switches_unkept = failure.map(str::to_owned);
        });
    }

    /// Counts a file that was unusable at the start.
    pub(crate) fn found_bad(&self, file: StateFile) {
        self.update(|status| *status.bad.entry(file.name().to_owned()).or_default() += 1);
    }
}

/// The extension added to an unusable file that is set aside. The last one is kept for inspection.
pub(crate) const ASIDE: &str = "bad";

/// The extension added to a file that is kept as evidence of a crash loop.
pub(crate) const EVIDENCE: &str = "crash-loop";
