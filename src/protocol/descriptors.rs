//! The descriptors of one request: lists of attributes, stored inline and reused for the next request.

use arrayvec::ArrayVec;

use super::{DESCRIPTORS_MAX, PAIRS_MAX};

/// At most 8 descriptors of at most 16 pairs, in the order of the request. A key may occur more than once; the user of
/// the descriptors decides its meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorList<'a> {
    pairs: ArrayVec<(&'a str, &'a str), ATTRIBUTES_MAX>,
    /// The end of each descriptor in `pairs`.
    ends: ArrayVec<u8, DESCRIPTORS_MAX>,
}

impl<'a> DescriptorList<'a> {
    /// Makes an empty list: 4 KiB inline, nothing on the heap.
    #[inline]
    pub fn new() -> DescriptorList<'a> {
        DescriptorList { pairs: ArrayVec::new_const(), ends: ArrayVec::new_const() }
    }

    #[inline]
    pub fn clear(&mut self) {
        self.pairs.clear();
        self.ends.clear();
    }

    /// Adds a descriptor. Returns `false`, without adding anything, if there are 8 already or it has more than 16
    /// pairs.
    #[must_use]
    pub fn push(&mut self, descriptor: &[(&'a str, &'a str)]) -> bool {
        let fits = descriptor.len() <= PAIRS_MAX && !self.ends.is_full();
        fits && descriptor.iter().all(|(key, value)| self.push_pair(key, value)) && self.end()
    }

    /// Adds a pair to the descriptor that [`DescriptorList::end`] will close. Returns `false` if it does not fit.
    #[inline]
    pub(super) fn push_pair(&mut self, key: &'a str, value: &'a str) -> bool {
        self.pairs.try_push((key, value)).is_ok()
    }

    /// Closes a descriptor. Returns `false` if there are 8 already.
    #[inline]
    pub(super) fn end(&mut self) -> bool {
        u8::try_from(self.pairs.len()).is_ok_and(|end| self.ends.try_push(end).is_ok())
    }

    /// The pairs of all descriptors in order.
    #[inline]
    pub fn attributes(&self) -> &[(&'a str, &'a str)] {
        &self.pairs
    }

    /// The descriptors, each as its pairs.
    pub fn iter(&self) -> impl Iterator<Item = &[(&'a str, &'a str)]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let end = usize::from(*end);
            // An empty descriptor in its place would match no rule.
            let descriptor = self.pairs.get(std::mem::replace(&mut start, end)..end);
            descriptor.unwrap_or_else(|| unreachable!("a descriptor ends among the pairs"))
        })
    }

    /// The end of each descriptor in [`attributes`](DescriptorList::attributes).
    #[inline]
    pub fn ends(&self) -> &[u8] {
        &self.ends
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no descriptor, not even an empty one.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

const ATTRIBUTES_MAX: usize = DESCRIPTORS_MAX * PAIRS_MAX;
