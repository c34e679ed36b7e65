//! Sections: entries of one kind with their checksum. Nothing of a section is believed before all of it has been proved.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use siphasher::sip::SipHasher13;

use super::Useless;
use crate::state::whole::Whole;

/// What a section holds, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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

impl Kind {
    const ALL: [Kind; 16] = [
        Kind::Head,
        Kind::Rules,
        Kind::Rule,
        Kind::Pool,
        Kind::Bucket,
        Kind::Log,
        Kind::Block,
        Kind::Soft,
        Kind::Repeat,
        Kind::Session,
        Kind::Lease,
        Kind::End,
        Kind::Places,
        Kind::Spent,
        Kind::Window,
        Kind::SlidingWindow,
    ];

    fn of(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// Checksums that run on from each other.
#[derive(Debug)]
struct Chain {
    key: [u8; 16],
    before: u64,
}

impl Chain {
    fn next(&mut self, head: [u8; HEAD_BYTES], payload: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.before);
        hasher.write(&head);
        hasher.write(payload);
        self.before = hasher.finish();
        self.before
    }
}

/// Writes sections. After an error it writes no more, and says so at the end.
#[derive(Debug)]
pub(super) struct SectionWriter {
    whole: Whole,
    chain: Chain,
    kind: Kind,
    count: u32,
    payload: Vec<u8>,
    bytes: u64,
    failed: Option<io::Error>,
}

impl SectionWriter {
    pub(super) fn new(whole: Whole, key: [u8; 16]) -> SectionWriter {
        SectionWriter {
            whole,
            chain: Chain { key, before: 0 },
            kind: Kind::Head,
            count: 0,
            payload: Vec::with_capacity(2 * SECTION_BYTES),
            bytes: 0,
            failed: None,
        }
    }

    /// One entry more, which is written behind what is there.
    pub(super) fn entry(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        if kind != self.kind || self.payload.len() >= SECTION_BYTES {
            self.section();
            self.kind = kind;
        }
        write(&mut self.payload);
        self.count += 1;
    }

    /// The end. Returns how many bytes all sections have.
    pub(super) fn end(mut self) -> io::Result<(Whole, u64)> {
        self.entry(Kind::End, |_| {});
        self.section();
        match self.failed {
            Some(error) => Err(error),
            None => Ok((self.whole, self.bytes)),
        }
    }

    fn section(&mut self) {
        if self.count > 0 && self.failed.is_none() {
            self.failed = self.write_section().err();
        }
        self.payload.clear();
        self.count = 0;
    }

    fn write_section(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.payload.len()).ok().filter(|bytes| *bytes <= SECTION_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("an entry is too large to be kept"))?;
        let head = head([self.kind as u32, self.count, length]);
        let checksum = self.chain.next(head, &self.payload);
        self.whole.write_all(&head)?;
        self.whole.write_all(&self.payload)?;
        self.whole.write_all(&checksum.to_le_bytes())?;
        self.bytes += (HEAD_BYTES + self.payload.len() + size_of::<u64>()) as u64;
        Ok(())
    }
}

/// A section that was proved: its kind, how many entries it has, and their bytes.
pub(super) type Section<'s> = (Kind, u32, &'s [u8]);

/// Reads sections and proves them.
#[derive(Debug)]
pub(super) struct SectionReader<R> {
    from: R,
    chain: Chain,
    payload: Vec<u8>,
}

impl<R: Read> SectionReader<R> {
    pub(super) fn new(from: R, key: [u8; 16]) -> SectionReader<R> {
        SectionReader { from, chain: Chain { key, before: 0 }, payload: Vec::new() }
    }

    /// The next section. `None` at the end, behind which nothing
    /// stands.
    pub(super) fn next(&mut self) -> Result<Option<Section<'_>>, Useless> {
        let mut head = [0; HEAD_BYTES];
        self.read(|from, _| from.read_exact(&mut head))?;
        let [kind, count, length] = words(head);
        if length > SECTION_BYTES_MAX {
            return Err(Useless::Damaged("a section is longer than any is"));
        }
        self.payload.clear();
        self.payload.resize(usize::try_from(length).unwrap_or_default(), 0);
        self.read(R::read_exact)?;
        let mut checksum = [0; 8];
        self.read(|from, _| from.read_exact(&mut checksum))?;
        if u64::from_le_bytes(checksum) != self.chain.next(head, &self.payload) {
            return Err(Useless::Damaged("a checksum is wrong"));
        }
        let kind = Kind::of(kind).ok_or(Useless::Damaged("it has a section of an unknown kind"))?;
        if kind != Kind::End {
            return Ok(Some((kind, count, &self.payload)));
        }
        if self.from.read(&mut [0])? > 0 {
            return Err(Useless::Damaged("there is something behind its end"));
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

fn head(words: [u32; 3]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    head
}

fn words(head: [u8; HEAD_BYTES]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = head;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}

const HEAD_BYTES: usize = 12;

/// A section ends once it has so many.
const SECTION_BYTES: usize = 64 << 10;

/// And has at most so many: its last entry, a log of ten thousand, has twice the others' bytes. So much is reserved for a
/// length that a file tells.
const SECTION_BYTES_MAX: u32 = 1 << 20;
