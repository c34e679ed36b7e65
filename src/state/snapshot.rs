//! The snapshot (the file `tables`): the engine's state across a restart, in sections with checksums.
//!
//! ```text
//!   "tidegate" │ version │ key print │ section │ section │ … │ the end
//!                8 bytes    8 bytes
//!   section:  kind │ entries │ bytes │ entries … │ checksum
//!             4       4         4                  8
//! ```
//!
//! All numbers are little-endian. A checksum is SipHash-1-3 under the key of the digests: it is in the tree already, is
//! as fast as the disk, and rejects a file made under another key, which would be useless. Each checksum includes the one
//! before, so the last covers the whole file: a truncated, missing, moved or foreign section is detected, as is a flipped
//! bit.
//!
//! A reader of version N reads N. A file with another version or an unknown kind of section is set aside whole; the
//! daemon then starts with empty state, as without a file. A version that reads older ones dispatches on their number.

mod bytes;
mod decode;
mod encode;
mod section;

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use super::files::{AtomicFile, open_regular};
use super::moment::Moment;
use crate::clock::{Now, Timestamp};
use crate::engine::Engine;
use crate::engine::kept::{SnapshotEntry, Unfit};
use bytes::ByteReader;
use section::{SectionKind, SectionReader, SectionWriter};

/// The key of the digests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SnapshotKey(pub [u8; 16]);

/// Hides the key, as it must not appear in logs.
impl std::fmt::Debug for SnapshotKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyBytes(…)")
    }
}

/// The version and key of a snapshot, checked before its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The format version; [`VERSION`] except in tests.
    pub version: u64,
    /// The key of its digests and checksums.
    pub key: SnapshotKey,
}

/// Makes a stamp of this version.
impl From<SnapshotKey> for Stamp {
    fn from(key: SnapshotKey) -> Stamp {
        Stamp { version: VERSION, key }
    }
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Useless {
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
    /// It holds state that no engine writes.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No clock can measure the time since it was written.
    #[error("the clocks have gone back since it was written, so its age is unknown")]
    NoTime,
}

/// The result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutBack {
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
    stamp: impl Into<Stamp>,
    engine: &Engine,
    now: Now,
    here: &Moment,
    is_final: bool,
) -> io::Result<u64> {
    let Stamp { version, key } = stamp.into();
    let mut whole = AtomicFile::begin(path)?;
    whole.write_all(MAGIC)?;
    whole.write_all(&version.to_le_bytes())?;
    whole.write_all(&fingerprint_key(key).to_le_bytes())?;
    let mut sections = SectionWriter::new(whole, key.0);
    let head = SnapshotHead { here: *here, at: now.at, is_final, keys: engine.count_keys() };
    encode::encode_head(&mut sections, &head);
    // After an error the rest is still copied, but not written.
    engine.copy_out(now, &mut |kept| encode::encode_entry(&mut sections, kept));
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
    stamp: impl Into<Stamp>,
    engine: &Engine,
    here: &Moment,
    bytes_max: u64,
) -> Result<PutBack, Useless> {
    let stamp = stamp.into();
    let file = open_regular(path)?;
    let metadata = file.metadata()?;
    if metadata.len() > bytes_max {
        return Err(Useless::TooLarge(metadata.len()));
    }
    let mut file = BufReader::with_capacity(READ_BYTES, file);
    check_preamble(&mut file, stamp)?;
    let mut sections = SectionReader::new(file, stamp.key.0);
    let head = match sections.next()? {
        Some((SectionKind::Head, 1, payload)) => decode::decode_head(&mut ByteReader::new(payload))?,
        _ => return Err(Useless::Damaged("its head is missing")),
    };
    let passed = here.since(&head.here).ok_or(Useless::NoTime)?;
    let at = head.at.after(passed);
    if at > AT_MAX {
        return Err(Useless::NoTime);
    }
    let now = Now { at, utc_offset_nanos: here.unix_nanos.saturating_sub_unsigned(at.as_nanos()) };
    // The expected number of keys is only a hint, bounded by the size of the file.
    let fit =
        |keys: usize, bytes: u64| keys.min(usize::try_from(metadata.len() / bytes).unwrap_or(usize::MAX));
    engine.expect_keys(fit(head.keys.0, encode::BUCKET_BYTES), fit(head.keys.1, encode::WINDOW_BYTES));
    let mut putting = engine.putting_back(now);
    let mut entries = 0;
    while let Some((kind, count, payload)) = sections.next()? {
        let mut bytes = ByteReader::new(payload);
        for _ in 0..count {
            let kept: SnapshotEntry = decode::decode_entry(kind, &mut bytes)?;
            putting.put(kept)?;
            entries += 1;
        }
        if !bytes.is_empty() {
            return Err(Useless::Damaged("a section holds more than its entries"));
        }
    }
    Ok(PutBack { at, passed, is_final: head.is_final, entries })
}

/// The first section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SnapshotHead {
    /// When the snapshot was written, by the machine's clocks.
    here: Moment,
    /// The same moment on the engine's timeline.
    at: Timestamp,
    is_final: bool,
    /// The approximate numbers of buckets and fixed windows that follow.
    keys: (usize, usize),
}

fn check_preamble(file: &mut impl io::Read, stamp: Stamp) -> Result<(), Useless> {
    let mut word = || -> Result<[u8; 8], Useless> {
        let mut word = [0; 8];
        match file.read_exact(&mut word) {
            Ok(()) => Ok(word),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Useless::Strange),
            Err(error) => Err(error.into()),
        }
    };
    if word()? != *MAGIC {
        return Err(Useless::Strange);
    }
    let found = u64::from_le_bytes(word()?);
    if found != stamp.version {
        return Err(Useless::Version { found, reads: stamp.version });
    }
    if u64::from_le_bytes(word()?) != fingerprint_key(stamp.key) {
        return Err(Useless::OtherKey);
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
pub const VERSION: u64 = 1;

const PREAMBLE_BYTES: u64 = 24;

/// A million leases with their ties.
const LEASES_BYTES: u64 = 256 << 20;

/// Bytes read from the kernel at a time.
const READ_BYTES: usize = 256 << 10;

/// 146 years, a quarter of the range, so that sums of times do not overflow.
const AT_MAX: Timestamp = Timestamp::from_nanos(1 << 62);
