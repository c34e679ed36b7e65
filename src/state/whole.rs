//! A file that is written whole or not at all: whoever reads it finds the old one or the new one, whenever the machine
//! stops. It never changes a file in place.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file being written beside the one that it will replace. Dropped before [`Whole::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct Whole {
    path: PathBuf,
    /// Where it is written until it is whole.
    beside: PathBuf,
    file: Option<BufWriter<File>>,
}

/// Replaces a file by these bytes, or leaves it as it is.
///
/// # Errors
/// What the file system says: no room, read-only, no such directory, a disk that fails. The old file stands then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut whole = Whole::begin(path)?;
    whole.write_all(bytes)?;
    whole.finish()
}

impl Whole {
    /// Begins a file, for its owner alone to read. What an earlier process left unfinished is dropped.
    ///
    /// # Errors
    /// What the file system says.
    pub fn begin(path: &Path) -> io::Result<Whole> {
        let beside = beside(path);
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A new one, or none: what somebody planted here, a link for instance, is not written through.
        let file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&beside)?;
        Ok(Whole { path: path.to_owned(), beside, file: Some(BufWriter::with_capacity(PIECE_BYTES, file)) })
    }

    /// Puts it in the place of the old one.
    ///
    /// # Errors
    /// What the file system says; the old file stands then. After a failed sync its pages may be gone, so it is not tried
    /// again on the same file.
    pub fn finish(mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let done = self.put_in_place(file);
        if done.is_err() {
            let _ = std::fs::remove_file(&self.beside);
        }
        done
    }

    fn put_in_place(&self, file: BufWriter<File>) -> io::Result<()> {
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&self.beside, &self.path)?;
        // The name is in the directory: until that is on the disk too, a power cut may bring back the old file.
        File::open(directory_of(&self.path))?.sync_all()
    }
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(bytes.len()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

/// Given up on.
impl Drop for Whole {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // What it still holds is not to be written.
            drop(file.into_parts());
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

/// Where a file is written until it is whole: one name, so that a crash leaves one file at most.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    }
}

/// What is kept says who did what how often: nobody else's business.
pub(super) const OWNER_ONLY: u32 = 0o600;

/// Written to the kernel at a time.
const PIECE_BYTES: usize = 64 << 10;
