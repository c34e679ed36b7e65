//! A file that the kernel generates when it is read: kept open, read from its start each time, never written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::signal_error::SignalError;

/// An open file of /proc or /sys.
#[derive(Debug)]
pub(super) struct Pseudofile {
    path: PathBuf,
    file: File,
}

impl Pseudofile {
    pub(super) fn open(path: PathBuf) -> io::Result<Pseudofile> {
        let file = File::open(&path)?;
        Ok(Pseudofile { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads its current text, as far as it fits into the buffer.
    pub(super) fn read<'b>(&self, buffer: &'b mut [u8; BYTES_MAX]) -> Result<&'b str, SignalError> {
        let read =
            self.file.read_at(buffer, 0).map_err(|error| SignalError::from_file(&self.path, &error))?;
        let text = buffer.get(..read).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.ok_or_else(|| self.malformed())
    }

    /// Makes the error for unexpected text.
    pub(super) fn malformed(&self) -> SignalError {
        SignalError::Malformed { path: self.path.as_path().into() }
    }
}

/// A file that may not exist yet: it is opened on first use.
#[derive(Debug)]
pub(super) struct LazyPseudofile {
    path: PathBuf,
    file: Option<Pseudofile>,
}

impl LazyPseudofile {
    pub(super) fn new(path: PathBuf) -> LazyPseudofile {
        LazyPseudofile { path, file: None }
    }

    /// Opens the file; `None` if it does not exist.
    pub(super) fn open_if_exists(&mut self) -> Option<&Pseudofile> {
        if self.file.is_none() {
            self.file = Pseudofile::open(self.path.clone()).ok();
        }
        self.file.as_ref()
    }

    /// Opens the file, which must exist.
    pub(super) fn open(&mut self) -> Result<&Pseudofile, SignalError> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let opened = Pseudofile::open(self.path.clone());
                Ok(none.insert(opened.map_err(|error| SignalError::from_file(&self.path, &error))?))
            }
        }
    }
}

/// The longest of these files, the control groups of a process, has a line for each of at most 16 hierarchies.
pub(super) const BYTES_MAX: usize = 4 << 10;
