//! The snapshot (the file `tables`): the engine's state across a restart, in sections with checksums.
//!
//! ```text
//!   "tidegate" │ version │ key print │ section │ section │ … │ the end
//!                8 bytes   8 bytes
//!   section:  length of the payload │ payload │ checksum
//!             4                                 8
//! ```
//!
//! Numbers of this frame are little-endian. A payload is MessagePack as `rmp-serde` writes it: structs as arrays, variants
//! by name. The first section has one [`SnapshotHead`], each other one any number of [`SnapshotEntry`]s; a nil follows the
//! last. The end is a section without a payload.
//!
//! A checksum is SipHash-1-3 under the key of the digests: it is in the tree already, is as fast as the disk, and rejects
//! a file made under another key, which would be useless. Each checksum includes the one before, so the last covers the
//! whole file: a truncated, missing, moved or foreign section is detected, as is a flipped bit.
//!
//! A reader of version N reads N, and refuses a file of another version whole. Version 1 encoded entries by hand.

mod section;

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::files::{AtomicFile, open_regular};
use super::moment::Moment;
use crate::clock::{Now, Timestamp};
use crate::engine::Engine;
use crate::engine::snapshot::{InvalidEntry, SnapshotEntry};
use section::{SectionReader, SectionWriter};

/// The key of the digests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SnapshotKey(pub [u8; 16]);

/// Hides the key, as it must not appear in logs.
impl std::fmt::Debug for SnapshotKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SnapshotKey(…)")
    }
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It does not begin with the magic bytes.
    #[error("it is not a tidegate snapshot")]
    Strange,
    /// It is of another version.
    #[error("it is of version {found}, and this tidegate reads version {reads}")]
    #[allow(missing_docs, reason = "the message says it")]
    Version { found: u64, reads: u64 },
    /// It was made under another key.
    #[error("it was made under another hash key")]
    OtherKey,
    /// It is larger than this daemon could have written.
    #[error("it has {0} bytes, more than this memory budget can produce")]
    TooLarge(u64),
    /// Its bytes are inconsistent.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// A value is not of the form that this version writes.
    #[error("it is damaged: {0}")]
    Malformed(#[from] rmp_serde::decode::Error),
    /// It holds state that no engine writes.
    #[error(transparent)]
    Unfit(#[from] InvalidEntry),
    /// No clock can measure the time since it was written.
    #[error("the clocks have gone back since it was written, so its age is unknown")]
    NoTime,
}

/// The result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreResult {
    /// The current moment of the engine's timeline.
    pub at: Timestamp,
    /// The age of the snapshot.
    pub passed: Duration,
    /// Whether it was written at an orderly exit.
    pub is_final: bool,
    /// The number of restored entries.
    pub entries: u64,
}

/// Writes a snapshot of an engine, atomically. Returns its size in bytes.
///
/// # Errors
/// File system errors; the old file stays then.
pub fn write_tables(
    path: &Path,
    key: SnapshotKey,
    engine: &Engine,
    now: Now,
    here: &Moment,
    is_final: bool,
) -> io::Result<u64> {
    let mut whole = AtomicFile::begin(path)?;
    whole.write_all(MAGIC)?;
    whole.write_all(&VERSION.to_le_bytes())?;
    whole.write_all(&fingerprint_key(key).to_le_bytes())?;
    let mut sections = SectionWriter::new(whole, key);
    sections.add(&SnapshotHead { here: *here, at: now.at, is_final, keys: engine.count_keys() })?;
    let mut written = sections.finish_section();
    // After an error the rest is still copied, but not written.
    engine.copy_out(now, &mut |entry| {
        if written.is_ok() {
            written = sections.add(&entry);
        }
    });
    written?;
    let (whole, bytes) = sections.end()?;
    whole.finish()?;
    Ok(bytes + PREAMBLE_BYTES)
}

/// Restores a snapshot into an empty engine. After an error the engine must be dropped.
///
/// # Errors
/// Why the snapshot cannot be used; the file is not moved.
pub fn read_tables(
    path: &Path,
    key: SnapshotKey,
    engine: &Engine,
    here: &Moment,
    bytes_max: u64,
) -> Result<RestoreResult, SnapshotError> {
    let file = open_regular(path)?;
    let metadata = file.metadata()?;
    if metadata.len() > bytes_max {
        return Err(SnapshotError::TooLarge(metadata.len()));
    }
    let mut file = BufReader::with_capacity(READ_BYTES, file);
    check_preamble(&mut file, key)?;
    let mut sections = SectionReader::new(file, key);
    let head: SnapshotHead = rmp_serde::from_slice(sections.next()?)?;
    let passed = here.since(&head.here).ok_or(SnapshotError::NoTime)?;
    let at = head.at.after(passed);
    if at > AT_MAX {
        return Err(SnapshotError::NoTime);
    }
    let now = Now { at, utc_offset_nanos: here.unix_nanos.saturating_sub_unsigned(at.as_nanos()) };
    // The expected number of keys is only a hint, bounded by the size of the file.
    let keys_max = usize::try_from(metadata.len() / KEY_BYTES_MIN).unwrap_or(usize::MAX);
    engine.expect_keys(head.keys.0.min(keys_max), head.keys.1.min(keys_max));
    let mut putting = engine.putting_back(now);
    let mut entries = 0;
    loop {
        let payload = sections.next()?;
        if payload.is_empty() {
            break;
        }
        let mut values = rmp_serde::Deserializer::from_read_ref(payload);
        while let Some(entry) = Option::<SnapshotEntry>::deserialize(&mut values)? {
            entries += entry.count() as u64;
            putting.put(entry)?;
        }
    }
    Ok(RestoreResult { at, passed, is_final: head.is_final, entries })
}

/// The first section.
#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    /// When the snapshot was written, by the machine's clocks.
    here: Moment,
    /// The same moment on the engine's timeline.
    at: Timestamp,
    is_final: bool,
    /// The approximate numbers of buckets and fixed windows that follow.
    keys: (usize, usize),
}

fn check_preamble(file: &mut impl io::Read, key: SnapshotKey) -> Result<(), SnapshotError> {
    let mut word = || -> Result<[u8; 8], SnapshotError> {
        let mut word = [0; 8];
        match file.read_exact(&mut word) {
            Ok(()) => Ok(word),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(SnapshotError::Strange),
            Err(error) => Err(error.into()),
        }
    };
    if word()? != *MAGIC {
        return Err(SnapshotError::Strange);
    }
    let found = u64::from_le_bytes(word()?);
    if found != VERSION {
        return Err(SnapshotError::Version { found, reads: VERSION });
    }
    if u64::from_le_bytes(word()?) != fingerprint_key(key) {
        return Err(SnapshotError::OtherKey);
    }
    Ok(())
}

/// Returns a number that distinguishes keys and does not reveal them.
fn fingerprint_key(key: SnapshotKey) -> u64 {
    siphasher::sip::SipHasher13::new_with_key(&key.0).hash(b"which key")
}

/// Returns an upper bound on the size of a snapshot under a memory budget, leases included. A larger file is not a
/// snapshot of this daemon.
#[must_use]
pub fn file_bytes_max(memory_bytes_max: u64) -> u64 {
    memory_bytes_max.saturating_mul(2).saturating_add(LEASES_BYTES)
}

const MAGIC: &[u8; 8] = b"tidegate";

/// The version of the layout and of the meaning of entries: the states of the algorithms, and the digests of their keys.
/// The test `entries_keep_their_format` fails where derived code changes the layout.
pub const VERSION: u64 = 2;

const PREAMBLE_BYTES: u64 = 24;

/// A million leases with their ties.
const LEASES_BYTES: u64 = 256 << 20;

/// No bucket and no window takes less.
const KEY_BYTES_MIN: u64 = 20;

/// Bytes read from the kernel at a time.
const READ_BYTES: usize = 256 << 10;

/// 146 years, a quarter of the range, so that sums of times do not overflow.
const AT_MAX: Timestamp = Timestamp::from_nanos(1 << 62);
