//! One file that the kernel writes as it is read: kept open, read from its start each time. Nothing is written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::unreadable::Unreadable;

/// A file of /proc or /sys, open.
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

    /// What it says now, as far as it fits.
    pub(super) fn read<'b>(&self, buffer: &'b mut [u8; BYTES_MAX]) -> Result<&'b str, Unreadable> {
        let read = self.file.read_at(buffer, 0).map_err(|error| Unreadable::file(&self.path, &error))?;
        let text = buffer.get(..read).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.ok_or_else(|| self.nonsense())
    }

    /// What it says now is not what such a file says.
    pub(super) fn nonsense(&self) -> Unreadable {
        Unreadable::Nonsense { path: self.path.as_path().into() }
    }
}

/// A file that may come later than what it tells about: it is opened when it is there.
#[derive(Debug)]
pub(super) struct Awaited {
    path: PathBuf,
    file: Option<Pseudofile>,
}

impl Awaited {
    pub(super) fn new(path: PathBuf) -> Awaited {
        Awaited { path, file: None }
    }

    /// None: it is not there.
    pub(super) fn if_there(&mut self) -> Option<&Pseudofile> {
        if self.file.is_none() {
            self.file = Pseudofile::open(self.path.clone()).ok();
        }
        self.file.as_ref()
    }

    /// The file, which must be there by now.
    pub(super) fn file(&mut self) -> Result<&Pseudofile, Unreadable> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let opened = Pseudofile::open(self.path.clone());
                Ok(none.insert(opened.map_err(|error| Unreadable::file(&self.path, &error))?))
            }
        }
    }
}

/// The longest of them, the control groups of a process, has a line for each of at most 16 hierarchies.
pub(super) const BYTES_MAX: usize = 4 << 10;
