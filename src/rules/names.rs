//! Interned names of attributes and domains, numbered in the order of their first occurrence.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

#[derive(Debug, Default)]
pub(crate) struct RuleNames {
    names: Vec<(TextFingerprint, Box<str>)>,
    /// Used for long names, or if there are too many names to compare one by one.
    numbers: HashTable<usize>,
}

impl RuleNames {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        if self.names.len() > COMPARED_MAX || name.len() > PRINT_BYTES {
            return self.find_hashed(name);
        }
        let print = TextFingerprint::of(name);
        self.names.iter().position(|(known, _)| *known == print)
    }

    #[inline(never)]
    fn find_hashed(&self, name: &str) -> Option<usize> {
        #[allow(clippy::indexing_slicing, reason = "they number names: a rule not found would admit")]
        let is = |number: &usize| *self.names[*number].1 == *name;
        self.numbers.find(hash(name), is).copied()
    }

    pub(crate) fn intern(&mut self, name: &str) -> usize {
        if let Some(number) = self.find(name) {
            return number;
        }
        let number = self.names.len();
        self.names.push((TextFingerprint::of(name), name.into()));
        let names = &self.names;
        let rehash = |number: &usize| names.get(*number).map_or(0, |(_, name)| hash(name));
        self.numbers.insert_unique(hash(name), number, rehash);
        number
    }
}

/// The length of a text and its first and last eight bytes: complete for texts of at most [`PRINT_BYTES`],
/// and compared without a function call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextFingerprint {
    length: usize,
    head: u64,
    tail: u64,
}

impl TextFingerprint {
    #[inline]
    fn of(text: &str) -> TextFingerprint {
        let bytes = text.as_bytes();
        let (head, tail) = if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
            (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
        } else if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
            (u64::from(u32::from_le_bytes(*head)), u64::from(u32::from_le_bytes(*tail)))
        } else {
            (bytes.iter().fold(0, |head, byte| head << 8 | u64::from(*byte)), 0)
        };
        TextFingerprint { length: bytes.len(), head, tail }
    }
}

/// A fast hash without a secret suffices: rules files are trusted, and requests insert nothing.
#[inline]
pub(super) fn hash(text: &str) -> u64 {
    FixedState::default().hash_one(text)
}

/// Texts up to this length are identified by their print.
const PRINT_BYTES: usize = 16;

/// Up to this number, comparing prints costs less than hashing one name.
const COMPARED_MAX: usize = 12;
