//! What the files of a rules directory hold, as fingerprints: whether anything differs from what was read. It parses
//! nothing.

use std::ffi::OsStr;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::source::{FILE_BYTES_MAX, read_bytes};

/// 128 bits of SipHash-1-3 under a key of zeros: the same on every host, so that hosts can be compared. It tells
/// apart what is written by mistake or on purpose by who may write rules; it is no proof against a forger.
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

/// A fingerprint while its parts come in.
#[derive(Default)]
struct Mix(SipHasher13);

impl Mix {
    /// Adds a part; with its length, so that no two lists of parts look alike.
    fn add(&mut self, part: &[u8]) {
        use std::hash::Hasher;
        self.0.write_u64(part.len() as u64);
        self.0.write(part);
    }

    fn finish(&self) -> Fingerprint {
        Fingerprint(self.0.finish128().as_u128())
    }
}

/// The fingerprints of all that belongs to the rules at one path: the rules files of a directory and the tables that
/// they may name, but for those that start with a dot; or one file and those that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// By path, in the order of the names.
    files: Vec<(PathBuf, Fingerprint)>,
    /// Why the files could not be listed.
    unlisted: Option<Fingerprint>,
}

impl Contents {
    /// Reads them all.
    pub(super) fn of(path: &Path) -> Contents {
        let mut room = BYTES_MAX;
        let files = match list(path) {
            Ok(Listed::Directory(files)) => files,
            Ok(Listed::File(beside)) => {
                // What the file does not name may be anybody's.
                let text = read_bytes(path).map(|read| read.bytes).unwrap_or_default();
                let named = beside.into_iter().filter(|file| names(&text, file.file_name()));
                std::iter::once(path.to_owned()).chain(named).collect()
            }
            Err(error) => {
                let why = Fingerprint::of(&[error.to_string().as_bytes()]);
                return Contents { files: Vec::new(), unlisted: Some(why) };
            }
        };
        let files = files.into_iter().filter_map(|file| {
            let fingerprint = content(&file, &mut room)?;
            Some((file, fingerprint))
        });
        Contents { files: files.collect(), unlisted: None }
    }

    /// All of it in one.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let mut mix = Mix::default();
        if let Some(why) = self.unlisted {
            mix.add(&why.0.to_le_bytes());
        }
        self.files.iter().for_each(|(file, content)| mix.add_file(file, *content));
        mix.finish()
    }

    /// What a domain is made of: those of the files that are its own, and all that are no rules files, for its rules
    /// may name any of them.
    pub(super) fn of_domain(&self, is_its_own: impl Fn(&Path) -> bool) -> Fingerprint {
        let mut mix = Mix::default();
        for (file, content) in &self.files {
            if is_its_own(file) || file.extension() != Some(OsStr::new("yaml")) {
                mix.add_file(file, *content);
            }
        }
        mix.finish()
    }
}

impl Mix {
    fn add_file(&mut self, file: &Path, content: Fingerprint) {
        // The name alone: hosts may keep the same rules in different places.
        self.add(file.file_name().unwrap_or_default().as_bytes());
        self.add(&content.0.to_le_bytes());
    }
}

/// Names, sizes, times and inodes of the same files, without reading them: for looking again every few seconds where
/// the kernel does not tell of changes. It may differ when the contents do not.
#[must_use]
pub fn glance(path: &Path) -> Fingerprint {
    let mut mix = Mix::default();
    let files = match list(path) {
        Ok(Listed::Directory(files)) => files,
        Ok(Listed::File(beside)) => std::iter::once(path.to_owned()).chain(beside).collect(),
        Err(error) => vec![PathBuf::from(error.to_string())],
    };
    for file in files {
        mix.add(file.as_os_str().as_bytes());
        match file.metadata() {
            Ok(metadata) => mix.add(&stamp(&metadata)),
            Err(error) => mix.add(error.to_string().as_bytes()),
        }
    }
    mix.finish()
}

/// What there is at a path.
enum Listed {
    /// The files of a directory, by name.
    Directory(Vec<PathBuf>),
    /// One file; the tables that lie beside it.
    File(Vec<PathBuf>),
}

fn list(path: &Path) -> std::io::Result<Listed> {
    if path.metadata()?.is_dir() {
        return Ok(Listed::Directory(visible(path)?));
    }
    let directory = path.parent().map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
    let mut beside = directory.and_then(|directory| visible(directory).ok()).unwrap_or_default();
    beside.retain(|file| file.extension() == Some(OsStr::new("csv")) && file.file_name() != path.file_name());
    Ok(Listed::File(beside))
}

fn visible(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.path();
        // Editors and mounted config maps keep their own files behind a dot. What has another ending is nobody's that
        // rules may name: a log that is written here must not make every reading ask for the next.
        let is_read =
            file.extension().is_some_and(|ending| READ.iter().any(|read| ending.eq_ignore_ascii_case(read)));
        if is_read && !entry.file_name().as_bytes().starts_with(b".") {
            files.push(file);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// What a file holds; none for a directory, which holds no rules. `room` is how much may still be read.
fn content(file: &Path, room: &mut u64) -> Option<Fingerprint> {
    let metadata = match file.metadata() {
        Ok(metadata) if metadata.is_dir() && file.extension() != Some(OsStr::new("yaml")) => return None,
        Ok(metadata) => metadata,
        Err(error) => return Some(Fingerprint::of(&[b"unreadable", error.to_string().as_bytes()])),
    };
    if metadata.len() > FILE_BYTES_MAX || metadata.len() > *room {
        return Some(Fingerprint::of(&[b"large", &stamp(&metadata)]));
    }
    *room -= metadata.len();
    Some(match read_bytes(file) {
        Ok(read) => Fingerprint::of(&[b"read", &read.bytes]),
        Err(wrong) => Fingerprint::of(&[b"unreadable", wrong.message.as_bytes()]),
    })
}

fn stamp(metadata: &Metadata) -> [u8; 56] {
    let numbers = [
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        metadata.mtime().cast_unsigned(),
        metadata.mtime_nsec().cast_unsigned(),
        metadata.ctime().cast_unsigned(),
        metadata.ctime_nsec().cast_unsigned(),
    ];
    let mut stamp = [0; 56];
    for (place, number) in stamp.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    stamp
}

/// Whether a text names a file.
fn names(text: &[u8], file: Option<&OsStr>) -> bool {
    let name = file.unwrap_or_default().as_bytes();
    !name.is_empty() && text.windows(name.len()).any(|part| part == name)
}

/// Rules, rules whose ending is warned of, and tables.
const READ: [&str; 3] = ["yaml", "yml", "csv"];

/// More than all rules that a host can have; past that a file is known by its size and times. Hashed within a second.
const BYTES_MAX: u64 = 512 << 20;
