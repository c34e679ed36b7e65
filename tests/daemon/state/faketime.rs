//! A wall clock of a daemon's own, to be set while it runs: libfaketime answers in the C library's place, where it is there.
//! The boot-time clock and the monotonic one are left alone.

use std::fs;
use std::process::Command;

use tempfile::TempDir;
use tidegate::clock::unix_nanos;

use super::daemon::Plan;
use super::trouble::may;

/// Sets the wall clock of a daemon.
pub(crate) struct WallClock {
    /// With what the library reads whenever it is asked for the time, and the numbers of the processes that have it.
    directory: TempDir,
    /// From the true time.
    offset: i64,
}

/// Whether a wall clock can be set here; else it is said that the test was not run.
pub(crate) fn may_fake() -> bool {
    may("faketime", &["-f", "+0"])
}

impl Plan {
    /// Run with a wall clock that shows ten minutes past an hour, so that no hour ends by itself while a test runs.
    pub(crate) fn with_wall_clock(self) -> (Plan, WallClock) {
        // The command knows where its library is.
        let library =
            Command::new("faketime").args(["-f", "+0", "sh", "-c", "echo \"$LD_PRELOAD\""]).output();
        let library = String::from_utf8(library.unwrap().stdout).unwrap();
        let second = unix_nanos() / 1_000_000_000 % 3_600;
        let clock = WallClock { directory: tempfile::tempdir().unwrap(), offset: 600 - second };
        clock.write();
        let (library, directory) = (library.trim(), clock.directory.path().display());
        let script = format!(
            "echo $$ >>{directory}/processes; unset FAKETIME; export LD_PRELOAD='{library}' \
             FAKETIME_TIMESTAMP_FILE={directory}/offset FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1; exec \"$@\""
        );
        (self.shell(Box::leak(script.into_boxed_str())), clock)
    }
}

impl WallClock {
    /// Sets it on or back.
    pub(crate) fn step(&mut self, seconds: i64) {
        self.offset += seconds;
        self.write();
    }

    /// Replaced whole: it is read all the time.
    fn write(&self) {
        let (new, file) = (self.directory.path().join("new"), self.directory.path().join("offset"));
        fs::write(&new, format!("{:+}\n", self.offset)).unwrap();
        fs::rename(new, file).unwrap();
    }
}

/// What the library leaves of a process that was killed, as happens where a test fails.
impl Drop for WallClock {
    fn drop(&mut self) {
        let processes = fs::read_to_string(self.directory.path().join("processes")).unwrap_or_default();
        for process in processes.lines() {
            for name in ["faketime_shm_", "sem.faketime_sem_"] {
                let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
            }
        }
    }
}
