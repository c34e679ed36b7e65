//! Opens files to read that must be regular ones: a named pipe in the place of one would keep a start waiting.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file to read. Links are followed.
///
/// # Errors
/// What the file system says; `InvalidInput`: it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true), OFlags::empty())
}

/// As [`open_regular`], with these options, and without following a link that was planted in its place.
pub(super) fn open_planted(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open(path, options, OFlags::NOFOLLOW)
}

/// A named pipe is opened without waiting for its other end, a terminal without becoming ours.
fn open(path: &Path, options: &mut OpenOptions, more: OFlags) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
    }
}
