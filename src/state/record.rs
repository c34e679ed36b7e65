//! What is to be told of what is kept: how writing goes, and what was of no use at the start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is to be told of it. Written by the keeper alone, but for what was of no use.
#[derive(Debug, Default)]
pub struct Record {
    /// Files written.
    pub writes: AtomicU64,
    /// Writings that failed.
    pub failures: AtomicU64,
    /// When the last one was written, in seconds of Unix time; 0: none was.
    pub written_unix_seconds: AtomicU64,
    /// How large it is, in bytes.
    pub bytes: AtomicU64,
    /// How long it took, in microseconds.
    pub took_micros: AtomicU64,
    /// By [`StateFile`].
    bad: [AtomicU64; StateFile::ALL.len()],
}

/// A file of the state directory that a start reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFile {
    /// The tables, and what goes with them.
    Tables,
    /// What holds over the rules.
    Switches,
    /// The rules that were last good.
    Rules,
    /// The newest document of fleet overrides.
    Overrides,
}

impl StateFile {
    /// All of them.
    pub const ALL: [StateFile; 4] =
        [StateFile::Tables, StateFile::Switches, StateFile::Rules, StateFile::Overrides];

    /// Its name in the directory.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StateFile::Tables => "tables",
            StateFile::Switches => "switches",
            StateFile::Rules => "rules",
            StateFile::Overrides => "fleet-overrides",
        }
    }

    /// The name that it is set aside under. One is kept, for who wants to know what was wrong with it.
    #[must_use]
    pub const fn aside(self) -> &'static str {
        match self {
            StateFile::Tables => "tables.bad",
            StateFile::Switches => "switches.bad",
            StateFile::Rules => "rules.bad",
            StateFile::Overrides => "fleet-overrides.bad",
        }
    }
}

/// Moves a file of the state directory out of the way, in place of one that was moved before. Where it cannot be moved it
/// is written over in the end.
///
/// # Errors
/// What the file system says.
pub fn set_aside(path: &Path, file: StateFile) -> io::Result<PathBuf> {
    let aside = path.with_file_name(file.aside());
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

impl Record {
    /// A file was of no use at the start.
    pub fn found_bad(&self, file: StateFile) {
        if let Some(count) = self.bad.get(file as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often each file was of no use.
    #[must_use]
    pub fn bad(&self) -> [(StateFile, u64); StateFile::ALL.len()] {
        let count =
            |file: StateFile| self.bad.get(file as usize).map_or(0, |count| count.load(Ordering::Relaxed));
        StateFile::ALL.map(|file| (file, count(file)))
    }
}
