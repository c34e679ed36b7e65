//! The output of a recording: whole lines, up to a size. A file on a full disk ends with a whole line too.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(super) struct Sink<'o> {
    to: To<'o>,
    bytes_max: u64,
    bytes: u64,
    pub(super) lines: u64,
}

enum To<'o> {
    Standard(&'o mut dyn Write),
    /// A file created here.
    File(PathBuf, File),
    /// An existing pipe or device.
    Other(File),
}

impl<'o> Sink<'o> {
    /// Opens the output; `-` is standard output. Creates a file, but never overwrites one.
    pub(super) fn open(path: &Path, out: &'o mut dyn Write, bytes_max: u64) -> io::Result<Sink<'o>> {
        let to = if path.as_os_str() == "-" {
            To::Standard(out)
        } else {
            match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
                Ok(file) => To::File(path.to_owned(), file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_no_file(path) => {
                    To::Other(OpenOptions::new().write(true).open(path)?)
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let message = "it is there already, and is not written over: name another, or remove it";
                    return Err(io::Error::new(error.kind(), message));
                }
                Err(error) => return Err(error),
            }
        };
        Ok(Sink { to, bytes_max, bytes: 0, lines: 0 })
    }

    /// Writes as many whole lines as fit. Returns whether all did.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<bool> {
        let room = usize::try_from(self.bytes_max - self.bytes).unwrap_or(usize::MAX);
        let fits = match lines.get(..room) {
            None => lines,
            Some(first) => {
                let end = first.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                lines.get(..end).unwrap_or_default()
            }
        };
        let written = match &mut self.to {
            To::Standard(out) => out.write_all(fits).and_then(|()| out.flush()),
            To::File(_, file) | To::Other(file) => file.write_all(fits),
        };
        if let (Err(_), To::File(_, file)) = (&written, &self.to) {
            // After an error such as a full disk, cut off a partial line.
            let _ = file.set_len(self.bytes);
        }
        written?;
        self.bytes += fits.len() as u64;
        self.lines += fits.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(fits.len() == lines.len())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Standard(out) => out.flush(),
            To::File(_, file) | To::Other(file) => file.flush(),
        }
    }

    /// Removes the file, after a recording that did not start.
    pub(super) fn discard(self) {
        if let To::File(path, _) = self.to {
            let _ = std::fs::remove_file(path);
        }
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self.to, To::File(..))
    }

    /// Whether the lines go to a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self.to, To::Standard(_)) && io::stdout().is_terminal()
    }
}

/// Whether the path is a pipe, a character device or a socket, which may be written to.
fn is_no_file(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_socket())
}

/// Traces show the activity of callers, so only the owner may read them.
const MODE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::Sink;

    #[test]
    fn a_trace_ends_with_the_last_line_that_fits() {
        for (room, written) in
            [(0, ""), (3, ""), (4, "abc\n"), (8, "abc\n"), (9, "abc\ndefg\n"), (99, "abc\ndefg\n")]
        {
            let mut out = Vec::new();
            let mut sink = Sink::open("-".as_ref(), &mut out, room).unwrap();
            assert_eq!(sink.write(b"abc\ndefg\n").unwrap(), written == "abc\ndefg\n", "{room}");
            assert_eq!(sink.lines, written.lines().map(|_| 1).sum::<u64>());
            drop(sink);
            assert_eq!(String::from_utf8(out).unwrap(), written, "{room}");
        }
    }

    #[test]
    fn a_file_is_its_owners_and_none_that_is_there_is_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.jsonl");
        let sink = Sink::open(&path, &mut std::io::sink(), 9).map(drop);
        sink.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut out = std::io::sink();
        let Err(error) = Sink::open(&path, &mut out, 9) else { panic!("it is there") };
        assert!(error.to_string().contains("name another, or remove it"), "{error}");
        assert!(Sink::open("/dev/null".as_ref(), &mut out, 9).is_ok());
    }
}
