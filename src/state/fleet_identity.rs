//! Who this host is among others, as it is kept: some bytes whose meaning is none of this room's business.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::whole::write_whole;

/// The file of it. One is written at a time.
#[derive(Debug)]
pub struct IdentityFile(Mutex<PathBuf>);

impl IdentityFile {
    pub(super) fn at(path: PathBuf) -> IdentityFile {
        IdentityFile(Mutex::new(path))
    }

    /// What it holds; `None`: nothing that could be read.
    #[must_use]
    pub fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options.open(&*self.0.lock()).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Replaces it, for its owner alone to read.
    ///
    /// # Errors
    /// What the file system says; the old one stands then.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        write_whole(&self.0.lock(), bytes)
    }
}

/// Far more than it has.
const BYTES_MAX: u64 = 1_024;
