//! Fingerprints of the files of a rules directory, to detect changes without parsing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::source::{FILE_BYTES_MAX, read_bytes};

/// 128 bits of SipHash-1-3 under a zero key, so that hosts can compare them. It distinguishes the contents
/// that authors of rules write; it does not resist forgery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    fn of(parts: &[&[u8]]) -> Fingerprint {
        let mut mix = Mix::default();
        parts.iter().for_each(|part| mix.add(part));
        mix.finish()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Default)]
struct Mix(SipHasher13);

impl Mix {
    /// Adds a part with its length, so that different lists of parts hash differently.
    fn add(&mut self, part: &[u8]) {
        use std::hash::Hasher;
        self.0.write_u64(part.len() as u64);
        self.0.write(part);
    }

    fn finish(&self) -> Fingerprint {
        Fingerprint(self.0.finish128().as_u128())
    }
}

/// Rules files and tables that a writer has changed and not closed since, by their paths without links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenFiles(BTreeSet<PathBuf>);

impl OpenFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, file: &Path) -> bool {
        !self.0.is_empty() && file.canonicalize().is_ok_and(|file| self.0.contains(&file))
    }
}

impl FromIterator<PathBuf> for OpenFiles {
    fn from_iter<I: IntoIterator<Item = PathBuf>>(files: I) -> OpenFiles {
        OpenFiles(files.into_iter().collect())
    }
}

/// Fingerprints of the files of the rules at one path: rules files and tables of a directory except hidden
/// ones, or one file and the tables that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileFingerprints {
    /// Sorted by path.
    files: Vec<(PathBuf, Fingerprint)>,
    /// The error that prevented listing.
    unlisted: Option<Fingerprint>,
}

impl FileFingerprints {
    /// Reads and hashes the files, up to [`BYTES_MAX`].
    pub(super) fn of(path: &Path) -> FileFingerprints {
        let mut room = BYTES_MAX;
        let (mut files, tables) = match list(path) {
            Ok(listed) => listed,
            Err(error) => {
                let why = Fingerprint::of(&[error.to_string().as_bytes()]);
                return FileFingerprints { files: Vec::new(), unlisted: Some(why) };
            }
        };
        if !tables.is_empty() {
            // A table that the file does not name may be unrelated.
            let text = read_bytes(path).map(|(text, _)| text).unwrap_or_default();
            files.extend(tables.into_iter().filter(|file| names(&text, file.file_name())));
        }
        let files = files.into_iter().filter_map(|file| {
            let fingerprint = content(&file, &mut room)?;
            Some((file, fingerprint))
        });
        FileFingerprints { files: files.collect(), unlisted: None }
    }

    /// Returns the fingerprints of all files but the open ones.
    pub(super) fn without(mut self, open: &OpenFiles) -> FileFingerprints {
        self.files.retain(|(file, _)| !open.has(file));
        self
    }

    /// Returns the fingerprint of a domain: its own rules files, and all tables, as it may name any of them.
    pub(super) fn of_domain(&self, is_its_own: impl Fn(&Path) -> bool) -> Fingerprint {
        let mut mix = Mix::default();
        for (file, content) in &self.files {
            if is_its_own(file) || file.extension() != Some(OsStr::new("yaml")) {
                // Without the directory, which may differ between hosts.
                mix.add(file.file_name().unwrap_or_default().as_bytes());
                mix.add(&content.0.to_le_bytes());
            }
        }
        mix.finish()
    }
}

/// Hashes names, sizes, times and inodes of the files without reading them, for polling where the kernel does
/// not report changes. It may change although the contents do not.
pub(crate) fn glance(path: &Path) -> Fingerprint {
    let mut mix = Mix::default();
    let files = match list(path) {
        Ok((files, tables)) => [files, tables].concat(),
        Err(error) => vec![PathBuf::from(error.to_string())],
    };
    for file in files {
        mix.add(file.as_os_str().as_bytes());
        match file.metadata() {
            Ok(metadata) => mix.add(stamp(&metadata).as_bytes()),
            Err(error) => mix.add(error.to_string().as_bytes()),
        }
    }
    mix.finish()
}

/// Lists the files of a directory, sorted; or one file, and apart from it the tables beside it.
fn list(path: &Path) -> std::io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    if path.metadata()?.is_dir() {
        return Ok((visible(path)?, Vec::new()));
    }
    let directory = path.parent().map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
    let mut tables = directory.and_then(|directory| visible(directory).ok()).unwrap_or_default();
    tables.retain(|file| file.extension() == Some(OsStr::new("csv")) && file.file_name() != path.file_name());
    Ok((vec![path.to_owned()], tables))
}

/// Lists the files of a directory that are rules, misspelt rules or tables, sorted.
pub(super) fn visible(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.path();
        // Editors and config maps keep their files behind a dot. Other extensions are ignored, so that a log
        // written into the directory does not trigger endless reloads.
        let is_read =
            file.extension().is_some_and(|ending| READ.iter().any(|read| ending.eq_ignore_ascii_case(read)));
        if is_read && !entry.file_name().as_bytes().starts_with(b".") {
            files.push(file);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Hashes a file; `None` for a directory. `room` is the number of bytes that may still be read.
fn content(file: &Path, room: &mut u64) -> Option<Fingerprint> {
    let metadata = match file.metadata() {
        Ok(metadata) if metadata.is_dir() && file.extension() != Some(OsStr::new("yaml")) => return None,
        Ok(metadata) => metadata,
        Err(error) => return Some(Fingerprint::of(&[b"unreadable", error.to_string().as_bytes()])),
    };
    if metadata.len() > FILE_BYTES_MAX || metadata.len() > *room {
        return Some(Fingerprint::of(&[b"large", stamp(&metadata).as_bytes()]));
    }
    *room -= metadata.len();
    Some(match read_bytes(file) {
        Ok((text, _)) => Fingerprint::of(&[b"read", &text]),
        Err(wrong) => Fingerprint::of(&[b"unreadable", wrong.message.as_bytes()]),
    })
}

fn stamp(of: &Metadata) -> String {
    let times = (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    format!("{:?}", (of.dev(), of.ino(), of.size(), times))
}

fn names(text: &[u8], file: Option<&OsStr>) -> bool {
    let name = file.unwrap_or_default().as_bytes();
    !name.is_empty() && text.windows(name.len()).any(|part| part == name)
}

/// Extensions: rules, misspelt rules (reported by a warning), tables.
const READ: [&str; 3] = ["yaml", "yml", "csv"];

/// More than all rules of a host. Beyond it, files are identified by size and times. Hashed within a second.
const BYTES_MAX: u64 = 512 << 20;
