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
//!
//! The age of a snapshot is the time between two moments by all clocks of the machine, also across a reboot.

use std::hash::Hasher;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use siphasher::sip128::{self, Hasher128};

use super::files::{AtomicFile, open_regular};
use crate::clock::{Now, Timestamp, read_boot_nanos, unix_nanos};
use crate::engine::Engine;
use crate::engine::snapshot::{InvalidEntry, SnapshotEntry};
use crate::terms::without_number;

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
#[allow(missing_docs, reason = "the messages say it")]
pub enum SnapshotError {
    #[error("it cannot be read: {}", without_number(.0))]
    Unreadable(#[from] io::Error),
    #[error("it is not a tidegate snapshot")]
    Strange,
    #[error("it is of version {found}, and this tidegate reads version {reads}")]
    Version { found: u64, reads: u64 },
    #[error("it was made under another hash key")]
    OtherKey,
    #[error("it has {0} bytes, more than this memory budget can produce")]
    TooLarge(u64),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// A value is not of the form that this version writes.
    #[error("it is damaged: {0}")]
    Malformed(#[from] rmp_serde::decode::Error),
    /// It holds state that no engine writes.
    #[error(transparent)]
    Unfit(#[from] InvalidEntry),
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
    sections.add(&SnapshotHead { here: *here, at: now.at, is_final, unused: (0, 0) })?;
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

#[derive(Serialize, Deserialize)]
struct SnapshotHead {
    /// When the snapshot was written, by the machine's clocks.
    here: Moment,
    /// The same moment on the engine's timeline.
    at: Timestamp,
    is_final: bool,
    /// Numbers of keys, once: a struct is an array of all its fields.
    unused: (u64, u64),
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
pub(crate) fn file_bytes_max(memory_bytes_max: u64) -> u64 {
    memory_bytes_max.saturating_mul(2).saturating_add(LEASES_BYTES)
}

const MAGIC: &[u8; 8] = b"tidegate";

/// The version of the layout and of the meaning of entries: the states of the algorithms, and the digests of their keys.
/// The test `entries_keep_their_format` fails where derived code changes the layout.
pub const VERSION: u64 = 2;

const PREAMBLE_BYTES: u64 = 24;

/// A million leases with their ties.
const LEASES_BYTES: u64 = 256 << 20;

/// Bytes read from the kernel at a time.
const READ_BYTES: usize = 256 << 10;

/// 146 years, a quarter of the range, so that sums of times do not overflow.
const AT_MAX: Timestamp = Timestamp::from_nanos(1 << 62);

/// A chain of checksums, each of which includes the one before.
#[derive(Debug)]
struct ChecksumChain {
    key: SnapshotKey,
    last: u64,
}

impl ChecksumChain {
    fn add_section(&mut self, length: [u8; 4], payload: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key.0);
        hasher.write_u64(self.last);
        hasher.write(&length);
        hasher.write(payload);
        self.last = hasher.finish();
        self.last
    }
}

#[derive(Debug)]
struct SectionWriter {
    file: AtomicFile,
    chain: ChecksumChain,
    payload: Vec<u8>,
    bytes: u64,
}

impl SectionWriter {
    fn new(file: AtomicFile, key: SnapshotKey) -> SectionWriter {
        let chain = ChecksumChain { key, last: 0 };
        SectionWriter { file, chain, payload: Vec::with_capacity(2 * SECTION_BYTES), bytes: 0 }
    }

    /// Adds a value, and writes the section if it is full.
    fn add(&mut self, value: &impl Serialize) -> io::Result<()> {
        rmp_serde::encode::write(&mut self.payload, value).map_err(io::Error::other)?;
        if self.payload.len() < SECTION_BYTES { Ok(()) } else { self.finish_section() }
    }

    /// Writes the section, if it has a value.
    fn finish_section(&mut self) -> io::Result<()> {
        if self.payload.is_empty() {
            return Ok(());
        }
        rmp_serde::encode::write(&mut self.payload, &()).map_err(io::Error::other)?;
        self.write_section()
    }

    /// Writes the last section and the end. Returns the file and the size of all sections in bytes.
    fn end(mut self) -> io::Result<(AtomicFile, u64)> {
        self.finish_section()?;
        self.write_section()?;
        Ok((self.file, self.bytes))
    }

    fn write_section(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.payload.len()).ok().filter(|length| *length <= SECTION_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("an entry is too large for a section"))?;
        let length = length.to_le_bytes();
        let checksum = self.chain.add_section(length, &self.payload).to_le_bytes();
        for bytes in [&length[..], &self.payload, &checksum] {
            self.file.write_all(bytes)?;
            self.bytes += bytes.len() as u64;
        }
        self.payload.clear();
        Ok(())
    }
}

/// A reader of sections that verifies their checksums.
#[derive(Debug)]
struct SectionReader<R> {
    file: R,
    chain: ChecksumChain,
    payload: Vec<u8>,
}

impl<R: Read> SectionReader<R> {
    fn new(file: R, key: SnapshotKey) -> SectionReader<R> {
        SectionReader { file, chain: ChecksumChain { key, last: 0 }, payload: Vec::new() }
    }

    /// Reads the values of the next section; none at the end, after which no byte may follow.
    fn next(&mut self) -> Result<&[u8], SnapshotError> {
        let (mut length, mut checksum) = ([0; 4], [0; 8]);
        self.file.read_exact(&mut length).map_err(at_end)?;
        if u32::from_le_bytes(length) > SECTION_BYTES_MAX {
            return Err(SnapshotError::Damaged("a section is too long"));
        }
        self.payload.resize(usize::try_from(u32::from_le_bytes(length)).unwrap_or_default(), 0);
        self.file.read_exact(&mut self.payload).map_err(at_end)?;
        self.file.read_exact(&mut checksum).map_err(at_end)?;
        if u64::from_le_bytes(checksum) != self.chain.add_section(length, &self.payload) {
            return Err(SnapshotError::Damaged("a checksum is wrong"));
        }
        if self.payload.is_empty() && self.file.read(&mut [0])? > 0 {
            return Err(SnapshotError::Damaged("bytes follow its end"));
        }
        Ok(&self.payload)
    }
}

fn at_end(error: io::Error) -> SnapshotError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::Damaged("it ends too early"),
        _ => SnapshotError::Unreadable(error),
    }
}

/// The size at which a section ends.
const SECTION_BYTES: usize = 64 << 10;

/// The largest section: its last entry may be a log of 10 000. It bounds the memory reserved for the length in a file.
const SECTION_BYTES_MAX: u32 = 1 << 20;

/// A moment on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The identity of the boot-time clock: of one boot, in one time namespace. `None` if unknown; it then equals no
    /// other.
    pub clock: Option<u128>,
    /// The boot-time clock, in nanoseconds.
    pub boot_nanos: u64,
    /// The wall clock, in nanoseconds since 1970.
    pub unix_nanos: i64,
}

impl Moment {
    /// Reads all clocks. `boot_id` is the file that identifies the boot, [`BOOT_ID_FILE`] except in tests.
    pub fn here(boot_id: &Path) -> Moment {
        Moment::when(boot_id, read_boot_nanos())
    }

    /// Makes a moment from a reading of the boot-time clock that was just taken.
    pub fn when(boot_id: &Path, boot_nanos: u64) -> Moment {
        Moment { clock: identify_clock(boot_id), boot_nanos, unix_nanos: unix_nanos() }
    }

    /// Returns the time since an earlier moment; `None` if no clock can measure it.
    ///
    /// Within one boot the boot-time clock is exact, even if the wall clock was set in between. Across a reboot or time
    /// namespaces the wall clock is used, unless it went back.
    pub fn since(&self, earlier: &Moment) -> Option<Duration> {
        let by_wall = i128::from(self.unix_nanos) - i128::from(earlier.unix_nanos);
        let is_same = self.clock.is_some() && self.clock == earlier.clock;
        let by_boot = self.boot_nanos.checked_sub(earlier.boot_nanos).filter(|_| is_same);
        by_boot.or_else(|| u64::try_from(by_wall).ok()).map(Duration::from_nanos)
    }
}

/// Hashes the boot ID and the offsets of the time namespace, which shift the boot-time clock.
fn identify_clock(boot_id: &Path) -> Option<u128> {
    let boot = std::fs::read(boot_id).ok().filter(|id| !id.is_empty())?;
    // Kernels without time namespaces lack this file and have one clock.
    let offsets = std::fs::read(OFFSETS_FILE).unwrap_or_default();
    let mut hasher = sip128::SipHasher13::new();
    hasher.write_u64(boot.len() as u64);
    hasher.write(&boot);
    hasher.write(&offsets);
    Some(hasher.finish128().as_u128())
}

/// The file that identifies the boot.
pub const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The file with the clock offsets of the time namespace.
const OFFSETS_FILE: &str = "/proc/self/timens_offsets";
