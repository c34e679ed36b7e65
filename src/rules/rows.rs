//! Exact keys with a number each, compact enough for hundreds of thousands.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// A map from keys, each with the same number of values, to numbers.
#[derive(Clone, Default)]
pub struct Rows {
    /// The values of all keys in order, each preceded by its length.
    bytes: Vec<u8>,
    rows: HashTable<RowStart>,
}

#[derive(Clone, Copy, Debug)]
struct RowStart {
    start: u32,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdded {
    /// A duplicate of the key with this index in insertion order, from 0.
    Known(usize),
    Full,
}

impl Rows {
    /// Adds a key. All keys have the same number of values, each at most 65 535 bytes long.
    pub(super) fn insert<'v>(
        &mut self,
        values: impl Iterator<Item = &'v str> + Clone,
        number: u32,
    ) -> Result<(), NotAdded> {
        if let Some(known) = self.find(values.clone()) {
            return Err(NotAdded::Known(self.rows.iter().filter(|row| row.start < known.start).count()));
        }
        let start = u32::try_from(self.bytes.len()).map_err(|_| NotAdded::Full)?;
        for value in values.clone() {
            let length = u16::try_from(value.len()).map_err(|_| NotAdded::Full)?;
            self.bytes.extend_from_slice(&length.to_le_bytes());
            self.bytes.extend_from_slice(value.as_bytes());
        }
        let columns = values.clone().count();
        let bytes = &self.bytes;
        let rehash = |row: &RowStart| hash(values_at(bytes, *row).take(columns));
        self.rows.insert_unique(hash(values.map(str::as_bytes)), RowStart { start, number }, rehash);
        Ok(())
    }

    /// Returns the number of a key.
    pub fn number_of<'v>(&self, values: impl Iterator<Item = &'v str> + Clone) -> Option<u32> {
        self.find(values).map(|row| row.number)
    }

    fn find<'v>(&self, values: impl Iterator<Item = &'v str> + Clone) -> Option<&RowStart> {
        if self.rows.is_empty() {
            return None;
        }
        let values = values.map(str::as_bytes);
        let is = |row: &RowStart| {
            let mut known = values_at(&self.bytes, *row);
            values.clone().all(|value| known.next() == Some(value))
        };
        self.rows.find(hash(values.clone()), is)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns a short fingerprint of the rows, and of what their numbers mean.
    pub(crate) fn fingerprint(&self, meaning: impl Hash) -> String {
        let rows = self.rows.iter().map(|row| FixedState::default().hash_one((row.start, row.number)));
        let rows = rows.fold(0, |all, row| all ^ row);
        format!("{:016x}", rows ^ FixedState::default().hash_one((&self.bytes, meaning)))
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the allocated bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.rows.allocation_size()
    }

    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

/// Compares keys and numbers in insertion order.
impl PartialEq for Rows {
    fn eq(&self, other: &Rows) -> bool {
        let numbers = |rows: &Rows| {
            let mut numbers: Vec<_> = rows.rows.iter().map(|row| (row.start, row.number)).collect();
            numbers.sort_unstable();
            numbers
        };
        self.len() == other.len() && self.bytes == other.bytes && numbers(self) == numbers(other)
    }
}

impl Eq for Rows {}

/// Prints only the number of keys, of which there may be 100 000.
impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({})", self.len())
    }
}

/// Returns the values from the start of a row on, including those of later rows.
fn values_at(bytes: &[u8], row: RowStart) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes.get(row.start as usize..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first_chunk()?;
        let (value, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        rest = behind;
        Some(value)
    })
}

/// A fast hash without a secret suffices: rules files are trusted, and requests insert nothing.
fn hash<'v>(values: impl Iterator<Item = &'v [u8]>) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    for value in values {
        hasher.write_usize(value.len());
        hasher.write(value);
    }
    hasher.finish()
}
