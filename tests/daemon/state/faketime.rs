//! A wall clock for one daemon that tests set while it runs, through libfaketime if installed. The boot-time
//! and monotonic clocks are real.

use super::trouble::may;
use crate::prelude::*;
use tempfile::TempDir;
use tidegate::clock::unix_nanos;

/// Sets the wall clock of a daemon.
pub(crate) struct WallClock {
    /// Holds the offset that the library reads at every call, and the pids of the processes that use it.
    directory: TempDir,
    /// From the true time, in seconds.
    offset: i64,
}

/// Whether a wall clock can be set here; else prints that the test is skipped.
pub(crate) fn may_fake() -> bool {
    may("faketime", &["-f", "+0"])
}

impl Plan {
    /// Runs with a wall clock at 10 min past an hour, so that no hour ends during a test.
    pub(crate) fn with_wall_clock(self) -> (Plan, WallClock) {
        // Get the library's path from the command.
        let library = format!("{FORGET} exec faketime -f +0 sh -c 'echo \"$LD_PRELOAD\"'");
        let library = Command::new("sh").args(["-c", &library]).output().unwrap();
        let library = String::from_utf8(library.stdout).unwrap();
        assert!(!library.trim().is_empty(), "faketime names its library");
        let second = unix_nanos() / 1_000_000_000 % 3_600;
        let clock = WallClock { directory: tempfile::tempdir().unwrap(), offset: 600 - second };
        clock.write();
        let (library, directory) = (library.trim(), clock.directory.path().display());
        let script = format!(
            "{FORGET} echo $$ >>{directory}/processes; unset FAKETIME; export LD_PRELOAD='{library}' \
             FAKETIME_TIMESTAMP_FILE={directory}/offset FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1; exec \"$@\""
        );
        (self.shell(script), clock)
    }
}

/// Removes a killed process's shared memory of this id, which keeps the library from setting the clock.
const FORGET: &str = "rm -f /dev/shm/*faketime_s*_$$;";

impl WallClock {
    /// Moves the clock by `seconds`.
    pub(crate) fn step(&mut self, seconds: i64) {
        self.offset += seconds;
        self.write();
    }

    /// Replaces the file by rename, as the library reads it at any time.
    fn write(&self) {
        let (new, file) = (self.directory.path().join("new"), self.directory.path().join("offset"));
        fs::write(&new, format!("{:+}\n", self.offset)).unwrap();
        fs::rename(new, file).unwrap();
    }
}

/// Removes the shared memory that the library leaves for killed processes, as after a failed test.
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
