//! The directory of what is kept: who keeps in it, the secret of the digests, and what is set aside. Whatever is wrong
//! with it, the daemon goes on without.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};

use super::record::StateFile;
use super::tables::KeyBytes;
use super::whole::{OWNER_ONLY, write_whole};

/// A directory that one daemon keeps its state in.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    key: KeyBytes,
    is_key_saved: bool,
    /// Held while the directory is ours.
    lock: Option<File>,
}

impl Directory {
    /// Takes a directory, with the key that is kept in it, or else this one. What keeps it from being written does not
    /// matter yet: [`Directory::prepare`] says it.
    ///
    /// Waits for up to [`LOCK_WAIT`] for another daemon that is just about to end.
    #[must_use]
    pub fn take(path: &Path, otherwise: KeyBytes) -> Directory {
        let mut directory =
            Directory { path: path.to_owned(), key: otherwise, is_key_saved: false, lock: None };
        for _ in 0..LOCK_TRIES {
            match directory.hold() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(LOCK_WAIT / LOCK_TRIES);
                }
                _ => break,
            }
        }
        if let Some(key) = directory.read_key() {
            (directory.key, directory.is_key_saved) = (key, true);
        }
        directory
    }

    /// The secret of the digests.
    #[must_use]
    pub fn key(&self) -> KeyBytes {
        self.key
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

    /// The file of what holds over the rules.
    #[must_use]
    pub fn switches(&self) -> PathBuf {
        self.path.join(StateFile::Switches.name())
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
        if !self.is_key_saved {
            write_whole(&self.path.join(KEY), &self.key.0)?;
            self.is_key_saved = true;
        }
        Ok(())
    }

    /// Whether another daemon keeps its state here: then nothing here is ours to read.
    pub fn is_anothers(&mut self) -> bool {
        self.hold().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn hold(&mut self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(OWNER_ONLY);
        // A link that somebody planted here is not followed.
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let lock = options.open(self.path.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        self.lock = Some(lock);
        Ok(())
    }

    fn read_key(&self) -> Option<KeyBytes> {
        let mut bytes = Vec::new();
        File::open(self.path.join(KEY)).ok()?.take(KEY_BYTES + 1).read_to_end(&mut bytes).ok()?;
        bytes.try_into().ok().map(KeyBytes)
    }
}

const KEY: &str = "hash-key";

const KEY_BYTES: u64 = 16;

const LOCK: &str = "lock";

/// As long as a drain and a last write take.
pub const LOCK_WAIT: Duration = Duration::from_millis(1_500);

const LOCK_TRIES: u32 = 75;
