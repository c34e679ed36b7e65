//! The directory of what is kept: who keeps in it, the secret of the digests, and what is set aside. Whatever is wrong
//! with it, the daemon goes on without.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::record::StateFile;
use super::regular::{open_planted, open_regular};
use super::small_file::SmallFile;
use super::tables::{KeyBytes, Stamp, VERSION};
use super::whole::{OWNER_ONLY, write_whole};

/// A directory that one daemon keeps its state in.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    key: KeyBytes,
    versions_ahead: u8,
    lock: Lock,
}

/// Held while the directory is ours.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock(Arc<OnceLock<File>>);

impl Lock {
    /// Lets the next daemon have the directory: the kernel would do so only when the last thread has left this process, and
    /// a disk may hold one for as long as it likes.
    pub(super) fn give_up(&self) {
        if let Some(lock) = self.0.get() {
            // Then it is given up when the process is gone.
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }
}

impl Directory {
    /// Takes a directory, with the key that is kept in it, or else this one. What keeps it from being written does not
    /// matter yet: [`Directory::prepare`] says it.
    ///
    /// Waits for up to [`LOCK_WAIT`] for another daemon that is just about to end. `versions_ahead` is 0 but where an
    /// upgrade is tested: by so many versions all files are newer than ours are.
    #[must_use]
    pub fn take(path: &Path, otherwise: KeyBytes, versions_ahead: u8) -> Directory {
        let mut directory =
            Directory { path: path.to_owned(), key: otherwise, versions_ahead, lock: Lock::default() };
        for _ in 0..LOCK_TRIES {
            match directory.hold() {
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

    /// The secret of the digests.
    #[must_use]
    pub fn key(&self) -> KeyBytes {
        self.key
    }

    /// What its tables say of themselves.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp { version: VERSION + u64::from(self.versions_ahead), key: self.key }
    }

    /// By how many versions its files are newer than ours are.
    #[must_use]
    pub fn versions_ahead(&self) -> u8 {
        self.versions_ahead
    }

    /// The file of tables.
    #[must_use]
    pub fn tables(&self) -> PathBuf {
        self.path.join(StateFile::Tables.name())
    }

    /// The file of the rules that were last good.
    #[must_use]
    pub fn rules(&self) -> PathBuf {
        self.path.join(StateFile::Rules.name())
    }

    /// The file of the last rules under which a daemon ran for a minute.
    #[must_use]
    pub fn proven_rules(&self) -> PathBuf {
        self.path.join(StateFile::ProvenRules.name())
    }

    /// The file of ends by a panic or an abort.
    #[must_use]
    pub fn crashes(&self) -> PathBuf {
        self.path.join(CRASHES)
    }

    /// The file of what holds over the rules.
    #[must_use]
    pub fn switches(&self) -> PathBuf {
        self.path.join(StateFile::Switches.name())
    }

    /// Who this host is among others.
    #[must_use]
    pub fn fleet_identity(&self) -> SmallFile {
        SmallFile::at(self.path.join(FLEET_IDENTITY), IDENTITY_BYTES_MAX)
    }

    /// The newest document of fleet overrides.
    #[must_use]
    pub fn fleet_overrides(&self) -> SmallFile {
        SmallFile::at(self.path.join(StateFile::Overrides.name()), OVERRIDES_BYTES_MAX)
    }

    pub(super) fn lock(&self) -> Lock {
        self.lock.clone()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sees to it that what is written is of use to the next daemon: nobody else writes here, and the key is kept.
    ///
    /// # Errors
    /// What the file system says; `WouldBlock`: another daemon keeps its state here.
    pub fn prepare(&mut self) -> io::Result<()> {
        self.hold()?;
        // Read each time: a directory that was emptied meanwhile lacks it, and tables are of no use without it.
        if self.read_key().is_none_or(|kept| kept.0 != self.key.0) {
            write_whole(&self.path.join(KEY), &self.key.0)?;
        }
        Ok(())
    }

    /// Whether another daemon keeps its state here: then nothing here is ours to read.
    pub fn is_anothers(&mut self) -> bool {
        self.hold().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn hold(&mut self) -> io::Result<()> {
        if self.lock.0.get().is_some() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(OWNER_ONLY);
        let lock = open_planted(&self.path.join(LOCK), &mut options)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        // Nobody else takes it meanwhile: this is the one directory.
        let _ = self.lock.0.set(lock);
        Ok(())
    }

    fn read_key(&self) -> Option<KeyBytes> {
        let mut bytes = Vec::new();
        open_regular(&self.path.join(KEY)).ok()?.take(KEY_BYTES + 1).read_to_end(&mut bytes).ok()?;
        bytes.try_into().ok().map(KeyBytes)
    }
}

const KEY: &str = "hash-key";

const KEY_BYTES: u64 = 16;

const FLEET_IDENTITY: &str = "fleet-identity";

/// Far more than it has.
const IDENTITY_BYTES_MAX: u64 = 1_024;

/// One more than a document has at most.
const OVERRIDES_BYTES_MAX: u64 = 65_537;
const CRASHES: &str = "crashes";

const LOCK: &str = "lock";

/// As long as a drain and a last write take.
pub const LOCK_WAIT: Duration = Duration::from_millis(1_500);

const LOCK_TRIES: u32 = 75;
