//! Crash records in the state directory, so that a start can detect a crash loop. A panic or an abort of the daemon
//! itself leaves a record; a signal from another process does not.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::files::{OWNER_ONLY, check_owner, open_no_follow};
use super::moment::Moment;
use crate::clock::read_boot_nanos;
use crate::sys;

/// The file of crash records, open for appending.
#[derive(Debug)]
pub(crate) struct Crashes {
    file: File,
    /// The identity of the boot-time clock (see [`Moment::clock`]); 0 if unknown.
    clock: u128,
    /// Crashes within [`CRASH_LOOP_SPAN`] before this start.
    recent: usize,
}

impl Crashes {
    /// Opens the file and installs a handler that records aborts of this process.
    pub(crate) fn open(path: &Path, here: &Moment) -> io::Result<Crashes> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(OWNER_ONLY);
        let mut file = open_no_follow(path, &mut options)?;
        check_owner(&file)?;
        let clock = here.clock.unwrap_or_default();
        let mut records = Vec::new();
        (&mut file).take(RECORDS_BYTES_MAX).read_to_end(&mut records)?;
        let span = u64::try_from(CRASH_LOOP_SPAN.as_nanos()).unwrap_or(u64::MAX);
        let is_recent = |record: &&[u8; RECORD_BYTES]| {
            let (nanos, recorded_clock) = record.split_first_chunk().unwrap_or((&[0; 8], &[]));
            let age = here.boot_nanos.checked_sub(u64::from_le_bytes(*nanos));
            clock != 0 && recorded_clock == clock.to_le_bytes() && age.is_some_and(|age| age <= span)
        };
        let recent = records.as_chunks().0.iter().filter(is_recent).count();
        // Only old records are left, or one that a full disk has torn.
        if recent == 0 && !records.is_empty() {
            file.set_len(0)?;
        }
        sys::record_aborts(file.try_clone()?, clock)?;
        Ok(Crashes { file, clock, recent })
    }

    /// Whether the daemon is in a crash loop: [`CRASH_LOOP_ENDS`] crashes within [`CRASH_LOOP_SPAN`].
    pub(crate) fn is_loop(&self) -> bool {
        self.recent >= CRASH_LOOP_ENDS
    }

    /// Clears the records, after the crash loop was handled.
    pub(crate) fn forget(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Records that a panic ends the daemon.
    pub(crate) fn note(&self) {
        // A crash that cannot be recorded is not counted.
        let _ = (&self.file).write_all(&sys::encode_crash_record(read_boot_nanos(), self.clock));
    }
}

const RECORD_BYTES: usize = sys::CRASH_RECORD_BYTES;

/// Further records are ignored: this number within a minute is a loop in any case.
const RECORDS_BYTES_MAX: u64 = 4_096 * RECORD_BYTES as u64;

/// Crashes within [`CRASH_LOOP_SPAN`] that make a loop.
pub(crate) const CRASH_LOOP_ENDS: usize = 5;

/// A service manager restarts the daemon at once, so five crashes take some seconds.
pub(crate) const CRASH_LOOP_SPAN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::{Crashes, Moment, RECORD_BYTES};
    use crate::sys::encode_crash_record;

    const SECOND: u64 = 1_000_000_000;

    /// Writes records of crashes at these seconds and opens them at second 100. Returns whether they are a loop, and how
    /// many records are left.
    fn open_at_second_100(seconds: &[u64], clock: u128, torn: usize) -> (bool, u64) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("crashes");
        let mut records: Vec<u8> =
            seconds.iter().flat_map(|second| encode_crash_record(second * SECOND, clock)).collect();
        records.truncate(records.len() - torn);
        std::fs::write(&path, records).unwrap();
        let here = Moment { clock: Some(7), boot_nanos: 100 * SECOND, unix_nanos: 0 };
        let crashes = Crashes::open(&path, &here).unwrap();
        (crashes.is_loop(), path.metadata().unwrap().len() / RECORD_BYTES as u64)
    }

    #[test]
    fn detects_loop_after_five_crashes_within_a_minute() {
        assert_eq!(open_at_second_100(&[96, 97, 98, 99, 100], 7, 0), (true, 5));
        assert_eq!(open_at_second_100(&[40, 97, 98, 99, 100], 7, 0), (true, 5));
        assert_eq!(open_at_second_100(&[39, 97, 98, 99, 100], 7, 0), (false, 5), "one is older");
        assert_eq!(open_at_second_100(&[97, 98, 99, 100], 7, 0), (false, 4));
        assert_eq!(open_at_second_100(&[96, 97, 98, 99, 100], 8, 0), (false, 0), "of another boot");
        assert_eq!(open_at_second_100(&[101, 102, 103, 104, 105], 7, 0), (false, 0), "of the future");
        assert_eq!(open_at_second_100(&[96, 97, 98, 99, 100], 7, 1), (false, 4), "the last one is torn");
    }
}
