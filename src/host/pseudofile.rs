//! A file that the kernel generates when it is read: kept open, read from its start each time, never written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::SignalError;

/// A file of /proc or /sys.
#[derive(Debug)]
pub(super) struct Pseudofile {
    pub(super) path: PathBuf,
    /// Open since the first use.
    file: Option<File>,
}

impl Pseudofile {
    /// Makes a file that may not exist yet: it is opened on first use.
    pub(super) fn new(path: PathBuf) -> Pseudofile {
        Pseudofile { path, file: None }
    }

    /// Opens a file that must exist.
    pub(super) fn open(path: PathBuf) -> io::Result<Pseudofile> {
        let file = Some(File::open(&path)?);
        Ok(Pseudofile { path, file })
    }

    /// Whether the file exists. Opens it.
    pub(super) fn exists(&mut self) -> bool {
        self.file().is_ok()
    }

    /// Reads its current text, as far as [`BYTES_MAX`], and parses it. `None` from `parse` means unexpected text.
    pub(super) fn parse_with<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, SignalError> {
        let mut buffer = [0; BYTES_MAX];
        let read = self.file().and_then(|file| file.read_at(&mut buffer, 0));
        let read = read.map_err(|error| SignalError::from_file(&self.path, &error))?;
        let text = buffer.get(..read).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(parse).ok_or_else(|| SignalError::Malformed { path: self.path.as_path().into() })
    }

    fn file(&mut self) -> io::Result<&File> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(File::open(&self.path)?)),
        }
    }
}

/// The longest of these files, the control groups of a process, has a line for each of at most 16 hierarchies.
const BYTES_MAX: usize = 4 << 10;
