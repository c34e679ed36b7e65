//! File access in the state directory: atomic replacement, and opening of regular files only.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A new file that replaces another one atomically: a reader finds the old content or the new, also after a power cut.
/// Dropped before [`AtomicFile::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct AtomicFile {
    path: PathBuf,
    /// The path of the new file until it replaces the old one.
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
}

/// Replaces a file by these bytes, atomically.
///
/// # Errors
/// File system errors: no space, read-only, no such directory, a failing disk. The old file stays then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut whole = AtomicFile::begin(path)?;
    whole.write_all(bytes)?;
    whole.finish()
}

impl AtomicFile {
    /// Creates the new file, readable by its owner only. An unfinished file of an earlier process is removed.
    pub fn begin(path: &Path) -> io::Result<AtomicFile> {
        let temporary = temporary_path(path);
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // `create_new` does not write through a planted link.
        let file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&temporary)?;
        Ok(AtomicFile {
            path: path.to_owned(),
            temporary,
            file: Some(BufWriter::with_capacity(BUFFER_BYTES, file)),
        })
    }

    /// Syncs the new file and moves it over the old one.
    ///
    /// # Errors
    /// File system errors; the old file stays then. After a failed sync dirty pages may be lost, so the same file is not
    /// synced again.
    pub fn finish(mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let done = self.replace_old(file);
        if done.is_err() {
            let _ = std::fs::remove_file(&self.temporary);
        }
        done
    }

    fn replace_old(&self, file: BufWriter<File>) -> io::Result<()> {
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&self.temporary, &self.path)?;
        // Without a sync of the directory, a power cut may bring back the old file.
        File::open(parent_directory(&self.path))?.sync_all()
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(bytes.len()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Discards the buffer instead of flushing it.
            drop(file.into_parts());
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Returns the path of the unfinished file: one fixed name, so that a crash leaves at most one.
fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn parent_directory(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    }
}

/// Opens a regular file for reading. Links are followed. `InvalidInput` if it is not a regular file, as a named pipe would
/// block the start, or if [`check_owner`] does not trust it.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = open(path, OpenOptions::new().read(true), OFlags::empty())?;
    check_owner(&file)?;
    Ok(file)
}

/// Trusts files of root and of this process's user. Another user that may write to the directory could add others: their
/// checksums have no secret, and rules, switches or a key would steer the daemon.
pub(super) fn check_owner(file: &File) -> io::Result<()> {
    if [0, rustix::process::geteuid().as_raw()].contains(&file.metadata()?.uid()) {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it belongs neither to root nor to the daemon's user",
        ))
    }
}

/// Opens a regular file like [`open_regular`], with these options and without following a link.
pub(super) fn open_no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open(path, options, OFlags::NOFOLLOW)
}

fn open(path: &Path, options: &mut OpenOptions, more: OFlags) -> io::Result<File> {
    // Opening a named pipe does not block, and a terminal does not become the controlling one.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// Reads at most `bytes_max` bytes of a regular file that is no link; `None` if it cannot be read.
pub(crate) fn read_small(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open_no_follow(path, OpenOptions::new().read(true)).ok()?;
    check_owner(&file).ok()?;
    file.take(bytes_max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The state shows which user did how much, so only the daemon's user may read it.
pub(super) const OWNER_ONLY: u32 = 0o600;

/// Bytes written to the kernel at a time.
const BUFFER_BYTES: usize = 64 << 10;
