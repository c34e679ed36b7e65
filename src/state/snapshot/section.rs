//! Sections of a snapshot: entries of one kind and their checksum. No entry is decoded before the checksum of its section
//! was verified.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use siphasher::sip::SipHasher13;

use super::Useless;
use crate::state::files::AtomicFile;

/// The kind of a section's entries, by its number in the file. Numbers never change and are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    Head = 1,
    Rules = 2,
    Rule = 3,
    Pool = 4,
    Bucket = 5,
    Log = 8,
    Block = 9,
    Soft = 10,
    Repeat = 11,
    Session = 12,
    Lease = 13,
    End = 14,
    Places = 15,
    Spent = 16,
    Window = 17,
    SlidingWindow = 18,
}

impl SectionKind {
    const ALL: [SectionKind; 16] = [
        SectionKind::Head,
        SectionKind::Rules,
        SectionKind::Rule,
        SectionKind::Pool,
        SectionKind::Bucket,
        SectionKind::Log,
        SectionKind::Block,
        SectionKind::Soft,
        SectionKind::Repeat,
        SectionKind::Session,
        SectionKind::Lease,
        SectionKind::End,
        SectionKind::Places,
        SectionKind::Spent,
        SectionKind::Window,
        SectionKind::SlidingWindow,
    ];

    fn from_number(number: u32) -> Option<SectionKind> {
        SectionKind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A chain of checksums, each of which includes the one before.
#[derive(Debug)]
struct ChecksumChain {
    key: [u8; 16],
    last: u64,
}

impl ChecksumChain {
    fn add_section(&mut self, head: [u8; HEAD_BYTES], payload: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.last);
        hasher.write(&head);
        hasher.write(payload);
        self.last = hasher.finish();
        self.last
    }
}

/// A writer of sections. After an error it writes no more; [`SectionWriter::end`] returns the error.
#[derive(Debug)]
pub(super) struct SectionWriter {
    whole: AtomicFile,
    chain: ChecksumChain,
    kind: SectionKind,
    count: u32,
    payload: Vec<u8>,
    bytes: u64,
    error: Option<io::Error>,
}

impl SectionWriter {
    pub(super) fn new(whole: AtomicFile, key: [u8; 16]) -> SectionWriter {
        SectionWriter {
            whole,
            chain: ChecksumChain { key, last: 0 },
            kind: SectionKind::Head,
            count: 0,
            payload: Vec::with_capacity(2 * SECTION_BYTES),
            bytes: 0,
            error: None,
        }
    }

    /// Adds an entry. `write` appends its bytes.
    pub(super) fn entry(&mut self, kind: SectionKind, write: impl FnOnce(&mut Vec<u8>)) {
        if kind != self.kind || self.payload.len() >= SECTION_BYTES {
            self.finish_section();
            self.kind = kind;
        }
        write(&mut self.payload);
        self.count += 1;
    }

    /// Writes the end. Returns the file and the size of all sections in bytes.
    pub(super) fn end(mut self) -> io::Result<(AtomicFile, u64)> {
        self.entry(SectionKind::End, |_| {});
        self.finish_section();
        match self.error {
            Some(error) => Err(error),
            None => Ok((self.whole, self.bytes)),
        }
    }

    fn finish_section(&mut self) {
        if self.count > 0 && self.error.is_none() {
            self.error = self.write_section().err();
        }
        self.payload.clear();
        self.count = 0;
    }

    fn write_section(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.payload.len()).ok().filter(|bytes| *bytes <= SECTION_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("an entry is too large for a section"))?;
        let head = encode_head([self.kind as u32, self.count, length]);
        let checksum = self.chain.add_section(head, &self.payload);
        self.whole.write_all(&head)?;
        self.whole.write_all(&self.payload)?;
        self.whole.write_all(&checksum.to_le_bytes())?;
        self.bytes += (HEAD_BYTES + self.payload.len() + size_of::<u64>()) as u64;
        Ok(())
    }
}

/// A verified section: its kind, the number of its entries, and their bytes.
pub(super) type SnapshotSection<'s> = (SectionKind, u32, &'s [u8]);

/// A reader of sections that verifies their checksums.
#[derive(Debug)]
pub(super) struct SectionReader<R> {
    from: R,
    chain: ChecksumChain,
    payload: Vec<u8>,
}

impl<R: Read> SectionReader<R> {
    pub(super) fn new(from: R, key: [u8; 16]) -> SectionReader<R> {
        SectionReader { from, chain: ChecksumChain { key, last: 0 }, payload: Vec::new() }
    }

    /// Reads the next section; `None` at the end, after which no byte may follow.
    pub(super) fn next(&mut self) -> Result<Option<SnapshotSection<'_>>, Useless> {
        let mut head = [0; HEAD_BYTES];
        self.read(|from, _| from.read_exact(&mut head))?;
        let [kind, count, length] = decode_head(head);
        if length > SECTION_BYTES_MAX {
            return Err(Useless::Damaged("a section is too long"));
        }
        self.payload.clear();
        self.payload.resize(usize::try_from(length).unwrap_or_default(), 0);
        self.read(R::read_exact)?;
        let mut checksum = [0; 8];
        self.read(|from, _| from.read_exact(&mut checksum))?;
        if u64::from_le_bytes(checksum) != self.chain.add_section(head, &self.payload) {
            return Err(Useless::Damaged("a checksum is wrong"));
        }
        let kind =
            SectionKind::from_number(kind).ok_or(Useless::Damaged("it has a section of an unknown kind"))?;
        if kind != SectionKind::End {
            return Ok(Some((kind, count, &self.payload)));
        }
        if self.from.read(&mut [0])? > 0 {
            return Err(Useless::Damaged("bytes follow its end"));
        }
        Ok(None)
    }

    fn read(&mut self, read: impl FnOnce(&mut R, &mut [u8]) -> io::Result<()>) -> Result<(), Useless> {
        read(&mut self.from, &mut self.payload).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Useless::Damaged("it ends too early"),
            _ => Useless::Unreadable(error),
        })
    }
}

fn encode_head(words: [u32; 3]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    head
}

fn decode_head(head: [u8; HEAD_BYTES]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = head;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}

const HEAD_BYTES: usize = 12;

/// The size at which a section ends.
const SECTION_BYTES: usize = 64 << 10;

/// The largest section: its last entry may be a log of 10 000. It bounds the memory reserved for the length in a file.
const SECTION_BYTES_MAX: u32 = 1 << 20;
