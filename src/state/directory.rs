//! The state directory: its lock, the key of the digests, the paths of its files, and statistics of them; and crash records in it, so
//! that a start can detect a crash loop. A panic or an abort of the daemon itself leaves a record; a signal from another process
//! does not. The daemon runs without the directory if it is unusable.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use super::files::{OWNER_ONLY, check_owner, open_no_follow, open_regular, write_whole};
use super::snapshot::{Moment, SnapshotKey};
use crate::clock::read_boot_nanos;
use crate::sys;

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

/// The file of crash records, open for appending.
#[derive(Debug)]
pub(crate) struct Crashes {
    file: File,
    /// The identity of the boot-time clock (see [`Moment::clock`]); 0 if unknown.
    clock: u128,
    /// Crashes within [`CRASH_LOOP_SPAN`] before this start.
    recent: usize,
}

impl Crashes {
    /// Opens the file and installs a handler that records aborts of this process.
    pub(crate) fn open(path: &Path, here: &Moment) -> io::Result<Crashes> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(OWNER_ONLY);
        let mut file = open_no_follow(path, &mut options)?;
        check_owner(&file)?;
        let clock = here.clock.unwrap_or_default();
        let mut records = Vec::new();
        (&mut file).take(RECORDS_BYTES_MAX).read_to_end(&mut records)?;
        let span = u64::try_from(CRASH_LOOP_SPAN.as_nanos()).unwrap_or(u64::MAX);
        let is_recent = |record: &&[u8; RECORD_BYTES]| {
            let (nanos, recorded_clock) = record.split_first_chunk().unwrap_or((&[0; 8], &[]));
            let age = here.boot_nanos.checked_sub(u64::from_le_bytes(*nanos));
            clock != 0 && recorded_clock == clock.to_le_bytes() && age.is_some_and(|age| age <= span)
        };
        let recent = records.as_chunks().0.iter().filter(is_recent).count();
        // Only old records are left, or one that a full disk has torn.
        if recent == 0 && !records.is_empty() {
            file.set_len(0)?;
        }
        sys::record_aborts(file.try_clone()?, clock)?;
        Ok(Crashes { file, clock, recent })
    }

    /// Whether the daemon is in a crash loop: [`CRASH_LOOP_ENDS`] crashes within [`CRASH_LOOP_SPAN`].
    pub(crate) fn is_loop(&self) -> bool {
        self.recent >= CRASH_LOOP_ENDS
    }

    /// Clears the records, after the crash loop was handled.
    pub(crate) fn forget(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    pub(crate) fn note(&self) {
        // A crash that cannot be recorded is not counted.
        let _ = (&self.file).write_all(&sys::encode_crash_record(read_boot_nanos(), self.clock));
    }
}

const RECORD_BYTES: usize = sys::CRASH_RECORD_BYTES;

/// Further records are ignored: this number within a minute is a loop in any case.
const RECORDS_BYTES_MAX: u64 = 4_096 * RECORD_BYTES as u64;

/// Crashes within [`CRASH_LOOP_SPAN`] that make a loop.
pub(crate) const CRASH_LOOP_ENDS: usize = 5;

/// A service manager restarts the daemon at once, so five crashes take some seconds.
pub(crate) const CRASH_LOOP_SPAN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::{Crashes, Moment, RECORD_BYTES};
    use crate::sys::encode_crash_record;

    const SECOND: u64 = 1_000_000_000;

    /// Writes records of crashes at these seconds and opens them at second 100. Returns whether they are a loop, and how
    /// many records are left.
    fn open_at_second_100(seconds: &[u64], clock: u128, torn: usize) -> (bool, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("crashes");
        let mut records: Vec<u8> =
            seconds.iter().flat_map(|second| encode_crash_record(second * SECOND, clock)).collect();
        records.truncate(records.len() - torn);
        std::fs::write(&path, records).unwrap();
        let here = Moment { clock: Some(7), boot_nanos: 100 * SECOND, unix_nanos: 0 };
        let crashes = Crashes::open(&path, &here).unwrap();
        (crashes.is_loop(), path.metadata().unwrap().len() / RECORD_BYTES as u64)
    }

    #[test]
    fn detects_loop_after_five_crashes_within_a_minute() {
        assert_eq!(open_at_second_100(&[96, 97, 98, 99, 100], 7, 0), (true, 5));
        assert_eq!(open_at_second_100(&[40, 97, 98, 99, 100], 7, 0), (true, 5));
        assert_eq!(open_at_second_100(&[39, 97, 98, 99, 100], 7, 0), (false, 5), "one is older");
        assert_eq!(open_at_second_100(&[97, 98, 99, 100], 7, 0), (false, 4));
        assert_eq!(open_at_second_100(&[96, 97, 98, 99, 100], 8, 0), (false, 0), "of another boot");
        assert_eq!(open_at_second_100(&[101, 102, 103, 104, 105], 7, 0), (false, 0), "of the future");
        assert_eq!(open_at_second_100(&[96, 97, 98, 99, 100], 7, 1), (false, 4), "the last one is torn");
    }
}
