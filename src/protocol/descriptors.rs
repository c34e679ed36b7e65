//! The descriptors of one request: lists of attributes, kept in place and used again for the next request.

use arrayvec::ArrayVec;

use super::{DESCRIPTORS_MAX, PAIRS_MAX};

/// At most 8 descriptors of at most 16 pairs, in the order they were written. A name may come more than once; what
/// that means is for the reader to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors<'a> {
    pairs: ArrayVec<(&'a str, &'a str), ATTRIBUTES_MAX>,
    /// Where in `pairs` each descriptor ends.
    ends: ArrayVec<u8, DESCRIPTORS_MAX>,
}

impl<'a> Descriptors<'a> {
    /// None yet. 4 KiB in place, none on the heap.
    #[inline]
    #[must_use]
    pub fn new() -> Descriptors<'a> {
        Descriptors { pairs: ArrayVec::new_const(), ends: ArrayVec::new_const() }
    }

    /// Forgets all.
    #[inline]
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.ends.clear();
    }

    /// Adds a descriptor; `false`, and nothing is added, when there are 8 already or it has more than 16 pairs.
    #[must_use]
    pub fn push(&mut self, descriptor: &[(&'a str, &'a str)]) -> bool {
        let fits = descriptor.len() <= PAIRS_MAX && !self.ends.is_full();
        fits && descriptor.iter().all(|(key, value)| self.push_pair(key, value)) && self.end()
    }

    /// Adds a pair to the descriptor that [`Descriptors::end`] will close.
    #[inline]
    pub(super) fn push_pair(&mut self, key: &'a str, value: &'a str) -> bool {
        self.pairs.try_push((key, value)).is_ok()
    }

    /// Closes a descriptor.
    #[inline]
    pub(super) fn end(&mut self) -> bool {
        u8::try_from(self.pairs.len()).is_ok_and(|end| self.ends.try_push(end).is_ok())
    }

    /// The pairs of all descriptors, one after the other.
    #[inline]
    #[must_use]
    pub fn attributes(&self) -> &[(&'a str, &'a str)] {
        &self.pairs
    }

    /// The descriptors, each as its pairs.
    pub fn iter(&self) -> impl Iterator<Item = &[(&'a str, &'a str)]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let end = usize::from(*end);
            // Read as an empty one, no rule would match it.
            let descriptor = self.pairs.get(std::mem::replace(&mut start, end)..end);
            descriptor.unwrap_or_else(|| unreachable!("a descriptor ends among the pairs"))
        })
    }

    /// Where among all pairs each descriptor ends.
    #[inline]
    #[must_use]
    pub fn ends(&self) -> &[u8] {
        &self.ends
    }

    /// How many descriptors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no descriptor, not even an empty one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

const ATTRIBUTES_MAX: usize = DESCRIPTORS_MAX * PAIRS_MAX;
