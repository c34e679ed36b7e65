//! Statistics of the state directory: writes of the snapshot, and unusable files found at the start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Statistics for metrics. Only the keeper writes them, except for unusable files.
#[derive(Debug, Default)]
pub struct SnapshotStats {
    /// Snapshots written.
    pub writes: AtomicU64,
    /// Failed writes.
    pub failures: AtomicU64,
    /// Unix time of the last snapshot in seconds; 0 if there is none.
    pub written_unix_seconds: AtomicU64,
    /// Size of the last snapshot in bytes.
    pub bytes: AtomicU64,
    /// Unusable files, by [`StateFile`].
    bad: [AtomicU64; StateFile::ALL.len()],
}

/// A file of the state directory that a start reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFile {
    /// The snapshot of the engine.
    Tables,
    /// Switches and blocks.
    Switches,
    /// The last good rules.
    Rules,
    /// The newest fleet overrides.
    Overrides,
    /// The last rules under which a daemon ran for a minute.
    ProvenRules,
}

impl StateFile {
    /// All of them.
    pub const ALL: [StateFile; 5] = [
        StateFile::Tables,
        StateFile::Switches,
        StateFile::Rules,
        StateFile::Overrides,
        StateFile::ProvenRules,
    ];

    /// Returns its name in the directory.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            StateFile::Tables => "tables",
            StateFile::Switches => "switches",
            StateFile::Rules => "rules",
            StateFile::Overrides => "fleet-overrides",
            StateFile::ProvenRules => "rules-proven",
        }
    }
}

/// Renames an unusable file of the state directory, replacing one that was set aside before. Returns the new path. A file
/// that cannot be renamed is overwritten by the next write.
///
/// # Errors
/// File system errors.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_added_extension(ASIDE);
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

/// Renames a file of the state directory as evidence of a crash loop. Returns the new path; `None` if there is no such
/// file. The evidence of the first loop stays until it is removed by hand; that of the latest loop is kept beside it.
///
/// # Errors
/// File system errors.
pub fn keep_evidence(path: &Path) -> io::Result<Option<PathBuf>> {
    let first = path.with_added_extension(EVIDENCE);
    let aside = if first.exists() { first.with_added_extension("latest") } else { first };
    match std::fs::rename(path, &aside) {
        Ok(()) => Ok(Some(aside)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl SnapshotStats {
    /// Counts a file that was unusable at the start.
    pub fn found_bad(&self, file: StateFile) {
        if let Some(count) = self.bad.get(file as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often each file was unusable, by its name.
    #[must_use]
    pub fn bad(&self) -> [(&'static str, u64); StateFile::ALL.len()] {
        let count =
            |file: StateFile| self.bad.get(file as usize).map_or(0, |count| count.load(Ordering::Relaxed));
        StateFile::ALL.map(|file| (file.name(), count(file)))
    }
}

/// The extension added to an unusable file that is set aside. The last one is kept for inspection.
pub const ASIDE: &str = "bad";

/// The extension added to a file that is kept as evidence of a crash loop.
pub const EVIDENCE: &str = "crash-loop";
