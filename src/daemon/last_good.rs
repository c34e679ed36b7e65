//! The last good rules, stored as texts beside the tables: a start at which a domain's files have errors
//! continues with them. They never replace the files. Proven rules, under which the daemon ran for a while, are stored
//! likewise for a start after a crash loop, which uses them instead of the files.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siphasher::sip::SipHasher13;
use tracing::{debug, info, warn};

use crate::clock::read_boot_nanos;
use crate::rules::{DomainTexts, Library};
use crate::state::{Directory, SnapshotStats, StateFile, open_regular, set_aside, write_whole};
use crate::terms::without_number;

#[derive(Debug)]
pub(super) struct LastGood {
    path: PathBuf,
    /// The file's role in the state directory.
    file: StateFile,
    is_failure_logged: bool,
    record: Arc<SnapshotStats>,
}

impl LastGood {
    pub(super) fn at(directory: &Directory, file: StateFile, record: Arc<SnapshotStats>) -> LastGood {
        LastGood { path: directory.path_of(file), file, is_failure_logged: false, record }
    }

    /// Restores the stored rules at the start. A damaged file, or one of another version, is set aside.
    pub(super) fn take_up(&self) -> Vec<DomainTexts> {
        let path = self.path.display();
        let bad = match self.read() {
            Ok(texts) => return texts,
            Err(bad) => bad,
        };
        self.record.found_bad(self.file);
        if bad.kind() != io::ErrorKind::InvalidData {
            warn!(%path, error = %without_number(&bad), "the rules that were kept cannot be read: not used");
            return Vec::new();
        }
        match set_aside(&self.path) {
            Ok(aside) => {
                let aside = aside.display();
                warn!(%path, %aside, "the rules that were kept are damaged or another version's: not used, and set aside");
            }
            Err(error) => {
                warn!(%path, error = %without_number(&error), "the rules that were kept are damaged or another version's: not used");
            }
        }
        Vec::new()
    }

    /// Returns the stored texts; empty if there are none, or they cannot be read.
    pub(super) fn texts(&self) -> Vec<DomainTexts> {
        self.read().unwrap_or_default()
    }

    /// Whether the file exists; `false` if that is unknown.
    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Reads the file; `InvalidData`: it is damaged.
    fn read(&self) -> io::Result<Vec<DomainTexts>> {
        let mut bytes = Vec::new();
        let file = open_regular(&self.path);
        match file.and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
            _ => {}
        }
        let texts = parse(&bytes).filter(|_| bytes.len() as u64 <= BYTES_MAX);
        texts.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Writes the texts in force; a domain whose files have errors keeps its stored texts. Returns false if
    /// the write should be retried.
    pub(super) fn write(&mut self, library: &Library) -> bool {
        let path = self.path.display();
        match self.try_write(library) {
            Ok(()) => {
                if std::mem::take(&mut self.is_failure_logged) {
                    info!(%path, "the rules can be kept again");
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failure_logged, true) {
                    let error = without_number(&error);
                    let help =
                        "make the directory, or let the daemon's user write there; tried again until then";
                    warn!(%path, help, "the rules cannot be kept for a start at which their files have errors: {error}");
                }
                false
            }
        }
    }

    fn try_write(&self, library: &Library) -> io::Result<()> {
        let current = library.texts();
        let before = match self.read() {
            Ok(texts) => texts,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
            // A file that cannot be read now must not be replaced by less.
            Err(error) => return Err(error),
        };
        let of =
            |texts: &[DomainTexts], name: &str| texts.iter().find(|texts| *texts.domain == *name).cloned();
        let domains = library.domains();
        let texts = domains
            .iter()
            .filter_map(|domain| of(&current, domain.name()).or_else(|| of(&before, domain.name())));
        let texts: Vec<DomainTexts> = texts.collect();
        if texts == before {
            return Ok(());
        }
        match written(&texts).filter(|bytes| bytes.len() as u64 <= BYTES_MAX) {
            Some(bytes) => write_whole(&self.path, &bytes)?,
            // A retry would not help.
            None => {
                let path = self.path.display();
                warn!(%path, "the rules are too large to be kept for a start at which their files have errors");
                return Ok(());
            }
        }
        debug!(domains = texts.len(), "the rules were kept");
        Ok(())
    }
}

/// Returns the file: a title line with the checksum of the body, then the texts as JSON.
fn written(texts: &[DomainTexts]) -> Option<Vec<u8>> {
    let body = serde_json::to_vec(texts).ok()?;
    let mut bytes = format!("{TITLE}{:016x}\n", SipHasher13::new().hash(&body)).into_bytes();
    bytes.extend(body);
    Some(bytes)
}

fn parse(bytes: &[u8]) -> Option<Vec<DomainTexts>> {
    let rest = bytes.strip_prefix(TITLE.as_bytes())?;
    let (checksum, rest) = rest.split_at_checked(CHECKSUM_DIGITS)?;
    let body = rest.strip_prefix(b"\n")?;
    let expected = format!("{:016x}", SipHasher13::new().hash(body));
    if checksum != expected.as_bytes() {
        return None;
    }
    serde_json::from_slice(body).ok()
}

/// The age of the rules in force, and the file that they are stored in once they are old enough.
#[derive(Debug, Default)]
pub(super) struct ProvenRules {
    /// The file of the proven rules; `None`: this daemon stores no state.
    pub(super) file: Option<LastGood>,
    /// How long rules are in force before they are proven.
    pub(super) after: Duration,
    /// The time at which the rules took effect, in ns of the boot-time clock; `None` once they are stored.
    pub(super) since: Option<u64>,
    pub(super) is_after_crash_loop: AfterCrashLoop,
}

/// Whether the proven rules are in force because of a crash loop. Shared with the operators' pages.
pub(super) type AfterCrashLoop = Arc<AtomicBool>;

impl ProvenRules {
    pub(super) fn is_after_crash_loop(&self) -> bool {
        self.is_after_crash_loop.load(Ordering::Relaxed)
    }

    /// Marks that the rules of the files are in force again.
    pub(super) fn files_are_read(&self) {
        self.is_after_crash_loop.store(false, Ordering::Relaxed);
    }

    /// Restarts the age, as other rules are in force.
    pub(super) fn begin(&mut self) {
        self.since = self.file.is_some().then(read_boot_nanos);
    }

    /// Returns the time until the rules in force are proven; `None`: there is nothing to store.
    pub(super) fn left(&self) -> Option<Duration> {
        let age = Duration::from_nanos(read_boot_nanos().saturating_sub(self.since?));
        Some(self.after.saturating_sub(age))
    }

    /// Stores the rules. After a failure it is retried once `after` has passed again.
    pub(super) fn keep(&mut self, library: &Library) {
        let is_kept = self.file.as_mut().is_none_or(|file| file.write(library));
        self.since = (!is_kept).then(read_boot_nanos);
    }
}

/// The first bytes of the file: its kind, and the version of the rest.
const TITLE: &str = "tidegate rules 1 ";

const CHECKSUM_DIGITS: usize = 16;

/// About 100 000 rules and their tables; more are not stored.
const BYTES_MAX: u64 = 64 << 20;
