//! A list in a message: either the bytes of a frame, checked once and decoded again by each iteration, or a slice to
//! send. Never on the heap.

use std::fmt;

use super::reader::PayloadReader;
use super::{COST_MAX, ID_MAX};

/// Connections and ids of abandoned requests.
pub type Abandoned<'a> = WireList<'a, (u64, u64)>;

#[derive(Clone, Copy)]
pub enum WireList<'a, T> {
    /// The bytes of all entries.
    Wire(&'a [u8]),
    Listed(&'a [T]),
}

pub trait WireEntry<'a>: Copy + PartialEq + fmt::Debug {
    /// Reads one entry from the front; `None` if there is none, or none that version 1 allows.
    fn read(bytes: &mut &'a [u8]) -> Option<Self>;
}

impl<'a, T: WireEntry<'a>> WireList<'a, T> {
    /// Reads `count` entries and keeps their bytes.
    pub(super) fn checked(reader: &mut PayloadReader<'a>, count: usize) -> Option<WireList<'a, T>> {
        let start = reader.rest();
        let mut rest = start;
        for _ in 0..count {
            T::read(&mut rest)?;
        }
        let bytes = reader.take_bytes(start.len() - rest.len())?;
        Some(WireList::Wire(bytes))
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut source = *self;
        std::iter::from_fn(move || match &mut source {
            WireList::Wire(bytes) => T::read(bytes),
            WireList::Listed(entries) => {
                let (first, rest) = entries.split_first()?;
                *entries = rest;
                Some(*first)
            }
        })
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }

    pub fn is_empty(&self) -> bool {
        match self {
            WireList::Wire(bytes) => bytes.is_empty(),
            WireList::Listed(entries) => entries.is_empty(),
        }
    }
}

impl<'a, T> From<&'a [T]> for WireList<'a, T> {
    fn from(entries: &'a [T]) -> WireList<'a, T> {
        WireList::Listed(entries)
    }
}

impl<T> Default for WireList<'_, T> {
    fn default() -> Self {
        WireList::Listed(&[])
    }
}

impl<'a, T: WireEntry<'a>> PartialEq for WireList<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: WireEntry<'a> + Eq> Eq for WireList<'a, T> {}

impl<'a, T: WireEntry<'a>> fmt::Debug for WireList<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> WireEntry<'a> for (&'a str, u64) {
    fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        read(bytes, |reader| Some((reader.name()?, reader.unsigned()?)))
    }
}

impl<'a> WireEntry<'a> for (&'a str, i64) {
    fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        read(bytes, |reader| Some((reader.name()?, reader.amount()?)))
    }
}

impl<'a> WireEntry<'a> for (u64, u64) {
    fn read(bytes: &mut &'a [u8]) -> Option<Self> {
        read(bytes, |reader| {
            let more = reader.array()?.checked_sub(2)?;
            let entry = (reader.unsigned()?, reader.unsigned_to(ID_MAX)?);
            for _ in 0..more {
                reader.skip()?;
            }
            Some(entry)
        })
    }
}

fn read<'a, T>(bytes: &mut &'a [u8], one: impl FnOnce(&mut PayloadReader<'a>) -> Option<T>) -> Option<T> {
    let mut reader = PayloadReader::new(bytes);
    let entry = one(&mut reader)?;
    *bytes = reader.rest();
    Some(entry)
}

impl PayloadReader<'_> {
    /// Reads a signed amount, clamped to ± [`COST_MAX`]: no rule counts further.
    pub(super) fn amount(&mut self) -> Option<i64> {
        let most = i128::from(COST_MAX);
        i64::try_from(self.integer()?.clamp(-most, most)).ok()
    }
}
