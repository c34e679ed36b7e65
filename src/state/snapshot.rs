//! The file of tables: all that the engine keeps over a restart, in sections that each prove themselves.
//!
//! ```text
//!   "tidegate" │ version │ which key │ section │ section │ … │ the end
//!                8 bytes    8 bytes
//!   section:  kind │ entries │ bytes │ entries … │ checksum
//!             4       4         4                  8
//! ```
//!
//! All numbers are little-endian. A checksum is SipHash-1-3 under the key of the digests: it is in the tree already, as
//! fast as the disk, and a file that was made under another key, which would be of no use, does not pass. Each runs on
//! from the one before, so the last is over all of it: a section that is cut off, left out, moved or taken from another
//! file is found, as is a single bit.
//!
//! A reader of version N reads N. What it does not know, a newer version or a kind of section, it sets aside whole: then
//! a restart begins afresh, as it does where there is no file. A version that reads older ones does so by their number.

mod bytes;
mod decode;
mod encode;
mod section;

use std::io::{self, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use super::moment::Moment;
use super::regular::open_regular;
use super::whole::Whole;
use crate::clock::{Now, Timestamp};
use crate::engine::Engine;
use crate::engine::kept::{Kept, Unfit};
use bytes::Bytes;
use section::{Kind, SectionReader, SectionWriter};

/// The secret of the digests, as it is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyBytes(pub [u8; 16]);

/// A secret is not for logs.
impl std::fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyBytes(…)")
    }
}

/// What a file of tables says of itself before all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// What its bytes mean; mostly [`VERSION`].
    pub version: u64,
    /// Under which key it is made.
    pub key: KeyBytes,
}

/// Of this version.
impl From<KeyBytes> for Stamp {
    fn from(key: KeyBytes) -> Stamp {
        Stamp { version: VERSION, key }
    }
}

/// Why a file of tables is of no use.
#[derive(Debug, thiserror::Error)]
pub enum Useless {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is no file of tables.
    #[error("it is no file of tables")]
    Strange,
    /// It is of another version.
    #[error("it is of version {found}, and this tidegate reads version {reads}")]
    #[allow(missing_docs, reason = "the message says it")]
    Version { found: u64, reads: u64 },
    /// It was made under another key.
    #[error("it was made under another hash key")]
    OtherKey,
    /// It is larger than what this daemon could have written.
    #[error("it has {0} bytes, more than tables of this memory budget come to")]
    TooLarge(u64),
    /// It is not as it was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// It holds what no engine hands out.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No clock says how much time has passed since it was written.
    #[error("the clocks have gone back since it was written: how much time has passed is not known")]
    NoTime,
}

/// What was put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// The moment of the engine's timeline that it was then, at the start.
    pub at: Timestamp,
    /// How much time had passed since the file was written.
    pub passed: Duration,
    /// Whether it was written at an orderly end.
    pub is_final: bool,
    /// How many things were put back.
    pub entries: u64,
}

/// Writes all that an engine keeps, beside what stands there until it is whole. Returns its size in bytes.
///
/// # Errors
/// What the file system says; the old file stands then.
pub fn write_tables(
    path: &Path,
    stamp: impl Into<Stamp>,
    engine: &Engine,
    now: Now,
    here: &Moment,
    is_final: bool,
) -> io::Result<u64> {
    let Stamp { version, key } = stamp.into();
    let mut whole = Whole::begin(path)?;
    whole.write_all(MAGIC)?;
    whole.write_all(&version.to_le_bytes())?;
    whole.write_all(&key_print(key).to_le_bytes())?;
    let mut sections = SectionWriter::new(whole, key.0);
    encode::head(&mut sections, &Head { here: *here, at: now.at, is_final, keys: engine.count_keys() });
    // The first error ends the writing, not the copying: nobody waits for that.
    engine.copy_out(now, &mut |kept| encode::entry(&mut sections, kept));
    let (whole, bytes) = sections.end()?;
    whole.finish()?;
    Ok(bytes + PREAMBLE_BYTES)
}

/// Reads a file of tables into an engine that is empty. After an error that engine is of no use.
///
/// # Errors
/// Why the file is of no use; it stays where it is.
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
    preamble(&mut file, stamp)?;
    let mut sections = SectionReader::new(file, stamp.key.0);
    let head = match sections.next()? {
        Some((Kind::Head, 1, payload)) => decode::head(&mut Bytes::new(payload))?,
        _ => return Err(Useless::Damaged("it has no head")),
    };
    let passed = here.since(&head.here).ok_or(Useless::NoTime)?;
    let at = head.at.after(passed);
    if at > AT_MAX {
        return Err(Useless::NoTime);
    }
    let now = Now { at, utc: here.unix_nanos.saturating_sub_unsigned(at.as_nanos()) };
    // A hint, no more: it is bounded by what the file can hold.
    let fit =
        |keys: usize, bytes: u64| keys.min(usize::try_from(metadata.len() / bytes).unwrap_or(usize::MAX));
    engine.expect_keys(fit(head.keys.0, encode::BUCKET_BYTES), fit(head.keys.1, encode::WINDOW_BYTES));
    let mut putting = engine.putting_back(now);
    let mut entries = 0;
    while let Some((kind, count, payload)) = sections.next()? {
        let mut bytes = Bytes::new(payload);
        for _ in 0..count {
            let kept: Kept = decode::entry(kind, &mut bytes)?;
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
struct Head {
    /// When it was written, by the machine's clocks.
    here: Moment,
    /// When that was on the engine's timeline.
    at: Timestamp,
    is_final: bool,
    /// About how many buckets and fixed windows follow.
    keys: (usize, usize),
}

fn preamble(file: &mut impl io::Read, stamp: Stamp) -> Result<(), Useless> {
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
    if u64::from_le_bytes(word()?) != key_print(stamp.key) {
        return Err(Useless::OtherKey);
    }
    Ok(())
}

/// Tells a key from others, and nothing about it.
fn key_print(key: KeyBytes) -> u64 {
    siphasher::sip::SipHasher13::new_with_key(&key.0).hash(b"which key")
}

/// More than what the tables of a memory budget, and the leases beside them, come to on the disk: a file that is larger is
/// no file of ours.
#[must_use]
pub fn file_bytes_max(memory_bytes_max: u64) -> u64 {
    memory_bytes_max.saturating_mul(2).saturating_add(LEASES_BYTES)
}

const MAGIC: &[u8; 8] = b"tidegate";

/// Of the file's layout and of what its entries mean: the states of the algorithms, and the digests of their keys.
pub const VERSION: u64 = 1;

const PREAMBLE_BYTES: u64 = 24;

/// A million leases, and what is tied to them.
const LEASES_BYTES: u64 = 256 << 20;

/// Read from the kernel at a time.
const READ_BYTES: usize = 256 << 10;

/// 146 years: half of all time, so that no sum of times comes to its end.
const AT_MAX: Timestamp = Timestamp::from_nanos(1 << 62);
