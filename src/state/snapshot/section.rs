//! Sections of a snapshot: MessagePack values, a nil after the last one, and a checksum. No value is decoded before the
//! checksum of its section was verified.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use serde::Serialize;
use siphasher::sip::SipHasher13;

use super::{SnapshotError, SnapshotKey};
use crate::state::files::AtomicFile;

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
pub(super) struct SectionWriter {
    file: AtomicFile,
    chain: ChecksumChain,
    payload: Vec<u8>,
    bytes: u64,
}

impl SectionWriter {
    pub(super) fn new(file: AtomicFile, key: SnapshotKey) -> SectionWriter {
        let chain = ChecksumChain { key, last: 0 };
        SectionWriter { file, chain, payload: Vec::with_capacity(2 * SECTION_BYTES), bytes: 0 }
    }

    /// Adds a value, and writes the section if it is full.
    pub(super) fn add(&mut self, value: &impl Serialize) -> io::Result<()> {
        rmp_serde::encode::write(&mut self.payload, value).map_err(io::Error::other)?;
        if self.payload.len() < SECTION_BYTES { Ok(()) } else { self.finish_section() }
    }

    /// Writes the section, if it has a value.
    pub(super) fn finish_section(&mut self) -> io::Result<()> {
        if self.payload.is_empty() {
            return Ok(());
        }
        rmp_serde::encode::write(&mut self.payload, &()).map_err(io::Error::other)?;
        self.write_section()
    }

    /// Writes the last section and the end. Returns the file and the size of all sections in bytes.
    pub(super) fn end(mut self) -> io::Result<(AtomicFile, u64)> {
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
pub(super) struct SectionReader<R> {
    file: R,
    chain: ChecksumChain,
    payload: Vec<u8>,
}

impl<R: Read> SectionReader<R> {
    pub(super) fn new(file: R, key: SnapshotKey) -> SectionReader<R> {
        SectionReader { file, chain: ChecksumChain { key, last: 0 }, payload: Vec::new() }
    }

    /// Reads the values of the next section; none at the end, after which no byte may follow.
    pub(super) fn next(&mut self) -> Result<&[u8], SnapshotError> {
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
