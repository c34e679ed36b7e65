//! The names of the attributes that rules ask about, as numbers in the order of their first mention.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Names by number, numbers by name.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: Vec<Box<str>>,
    /// Asked only where there are more names than are worth comparing one by one.
    numbers: HashTable<usize>,
}

impl Names {
    /// The number of a name, if it has one.
    #[inline]
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        if self.names.len() <= COMPARED_MAX {
            return self.names.iter().position(|known| **known == *name);
        }
        self.numbers.find(hash(name), |number| self.is(*number, name)).copied()
    }

    /// The number of a name, a new one if it has none.
    pub(super) fn intern(&mut self, name: &str) -> usize {
        if let Some(number) = self.find(name) {
            return number;
        }
        let number = self.names.len();
        self.names.push(name.into());
        let names = &self.names;
        self.numbers
            .insert_unique(hash(name), number, |number| names.get(*number).map_or(0, |name| hash(name)));
        number
    }

    fn is(&self, number: usize, name: &str) -> bool {
        self.names.get(number).is_some_and(|known| **known == *name)
    }
}

/// Rule files are trusted and a request inserts nothing, so a fast hash without a secret will do.
#[inline]
pub(super) fn hash(text: &str) -> u64 {
    FixedState::default().hash_one(text)
}

/// Most names differ in length, so comparing a dozen costs less than hashing one.
const COMPARED_MAX: usize = 12;
