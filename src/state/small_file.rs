//! A small file of bytes whose meaning is none of this room's business: the identity of this host, the fleet overrides.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::PathBuf;

use parking_lot::Mutex;

use super::regular::open_planted;
use super::whole::write_whole;

/// One is written at a time.
#[derive(Debug)]
pub struct SmallFile {
    path: Mutex<PathBuf>,
    bytes_max: u64,
}

impl SmallFile {
    /// Of at most this many bytes.
    pub(super) fn at(path: PathBuf, bytes_max: u64) -> SmallFile {
        SmallFile { path: Mutex::new(path), bytes_max }
    }

    /// What it holds; `None`: nothing that could be read.
    #[must_use]
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = open_planted(&self.path.lock(), OpenOptions::new().read(true)).ok()?;
        file.take(self.bytes_max).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Replaces it, for its owner alone to read.
    ///
    /// # Errors
    /// What the file system says; the old one stands then.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        write_whole(&self.path.lock(), bytes)
    }
}
