//! Ends of the daemon by its own panic or abort, noted in the state directory, so that a start can tell a crash loop from
//! restarts. An end by a signal of another process leaves no note.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::moment::Moment;
use super::regular::open_planted;
use super::whole::OWNER_ONLY;
use crate::clock::boot_nanos;
use crate::sys;

/// The notes of a state directory, open for one more.
#[derive(Debug)]
pub struct Crashes {
    file: File,
    /// Which boot-time clock this is.
    clock: u128,
    /// Ends within [`CRASH_LOOP_SPAN`] before now.
    recent: usize,
}

impl Crashes {
    /// Opens the notes, and has an abort of this process noted there.
    ///
    /// # Errors
    /// What the file system says.
    pub fn open(path: &Path, here: &Moment) -> io::Result<Crashes> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(OWNER_ONLY);
        let mut file = open_planted(path, &mut options)?;
        let clock = here.clock.unwrap_or_default();
        let mut notes = Vec::new();
        (&mut file).take(NOTES_BYTES_MAX).read_to_end(&mut notes)?;
        let span = u64::try_from(CRASH_LOOP_SPAN.as_nanos()).unwrap_or(u64::MAX);
        let is_recent = |note: &&[u8; NOTE_BYTES]| {
            let (nanos, of) = note.split_first_chunk().unwrap_or((&[0; 8], &[]));
            let age = here.boot_nanos.checked_sub(u64::from_le_bytes(*nanos));
            clock != 0 && of == clock.to_le_bytes() && age.is_some_and(|age| age <= span)
        };
        let recent = notes.as_chunks().0.iter().filter(is_recent).count();
        // Old notes, or a torn one at the end of a full disk, say nothing any more.
        if recent == 0 && !notes.is_empty() {
            file.set_len(0)?;
        }
        sys::record_aborts(file.try_clone()?, clock)?;
        Ok(Crashes { file, clock, recent })
    }

    /// Whether the daemon is in a crash loop: it ended [`CRASH_LOOP_ENDS`] times by itself within [`CRASH_LOOP_SPAN`].
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.recent >= CRASH_LOOP_ENDS
    }

    /// Forgets the notes: what followed from them is done.
    ///
    /// # Errors
    /// What the file system says.
    pub fn forget(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Notes that the daemon ends by a panic.
    pub fn note(&self) {
        // An end that cannot be noted is not counted.
        let _ = (&self.file).write_all(&sys::encode_crash_record(boot_nanos(), self.clock));
    }
}

const NOTE_BYTES: usize = sys::CRASH_RECORD_BYTES;

/// More notes are not looked at: so many ends within a minute are a loop in any case.
const NOTES_BYTES_MAX: u64 = 4_096 * NOTE_BYTES as u64;

/// So many ends within [`CRASH_LOOP_SPAN`] are no accident.
pub const CRASH_LOOP_ENDS: usize = 5;

/// A service manager starts the daemon again at once: five ends take some seconds.
pub const CRASH_LOOP_SPAN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::{Crashes, Moment, NOTE_BYTES};
    use crate::sys::encode_crash_record;

    const SECOND: u64 = 1_000_000_000;

    /// What a start says of notes of these seconds, at second 100.
    fn is_loop_of(seconds: &[u64], clock: u128, torn: usize) -> (bool, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("crashes");
        let mut notes: Vec<u8> =
            seconds.iter().flat_map(|second| encode_crash_record(second * SECOND, clock)).collect();
        notes.truncate(notes.len() - torn);
        std::fs::write(&path, notes).unwrap();
        let here = Moment { clock: Some(7), boot_nanos: 100 * SECOND, unix_nanos: 0 };
        let crashes = Crashes::open(&path, &here).unwrap();
        (crashes.is_loop(), path.metadata().unwrap().len() / NOTE_BYTES as u64)
    }

    #[test]
    fn five_ends_within_a_minute_are_a_loop() {
        assert_eq!(is_loop_of(&[96, 97, 98, 99, 100], 7, 0), (true, 5));
        assert_eq!(is_loop_of(&[40, 97, 98, 99, 100], 7, 0), (true, 5));
        assert_eq!(is_loop_of(&[39, 97, 98, 99, 100], 7, 0), (false, 5), "one is older");
        assert_eq!(is_loop_of(&[97, 98, 99, 100], 7, 0), (false, 4));
        assert_eq!(is_loop_of(&[96, 97, 98, 99, 100], 8, 0), (false, 0), "of another boot");
        assert_eq!(is_loop_of(&[101, 102, 103, 104, 105], 7, 0), (false, 0), "of the future");
        assert_eq!(is_loop_of(&[96, 97, 98, 99, 100], 7, 1), (false, 4), "the last one is torn");
    }
}
