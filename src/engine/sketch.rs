//! The most frequent callers in bounded memory, for display only; no decision reads it. A key is known by its
//! digest, unless a text is given.
//!
//! Space-saving (Metwally, Agrawal, El Abbadi, “Efficient Computation of Frequent and Top-k Elements in Data
//! Streams”, 2005): K counters; a key without one takes over the smallest and continues from its count, which
//! is recorded as the error. With T the sum of all weights:
//!
//! * a key's true count is at most `count` and at least `count − error`;
//! * `error` is at most T ÷ K, and every key whose true count is above T ÷ K has an entry.
//!
//! [`Sketch::halve`] halves counts, true counts and T, each rounded down; the bounds still hold, except that
//! an error may be larger by 1.

use arrayvec::ArrayVec;

use crate::limit::halves;

#[derive(Debug, Default)]
pub(super) struct Sketch {
    // Parallel arrays, so that the search for a key or the smallest count reads little memory.
    /// A part of each key, compared by a handful of vector instructions.
    prints: [u32; ENTRIES],
    keys: ArrayVec<[u64; 2], ENTRIES>,
    counts: ArrayVec<u64, ENTRIES>,
    rest: ArrayVec<SketchDetails, ENTRIES>,
    /// The smallest count, once all entries are taken; none before `from` has it.
    smallest: u64,
    from: usize,
}

/// The fields read only when an entry changes its key or is displayed.
#[derive(Debug)]
struct SketchDetails {
    error: u64,
    text: Option<Box<str>>,
}

#[derive(Debug)]
pub(super) struct SketchEntry {
    pub(super) key: [u64; 2],
    /// An upper bound of its count.
    pub(super) count: u64,
    /// The maximum excess of `count`.
    pub(super) error: u64,
    /// The key as text, where the rule shows keys.
    pub(super) text: Option<Box<str>>,
}

impl Sketch {
    /// Counts a key. `text` is called for a key without an entry, and cut; nothing else allocates.
    pub(super) fn add(&mut self, key: [u64; 2], weight: u64, text: impl FnOnce() -> Option<Box<str>>) {
        if weight == 0 {
            return;
        }
        if let Some(count) = self.find(key).and_then(|index| self.counts.get_mut(index)) {
            *count = count.saturating_add(weight);
            return;
        }
        let text = text().map(truncate_text);
        let index = self.keys.len();
        if self.keys.try_push(key).is_ok() {
            self.counts.push(weight);
            self.rest.push(SketchDetails { error: 0, text });
        } else {
            let index = self.index_of_smallest();
            if let (Some(known), Some(count), Some(rest)) =
                (self.keys.get_mut(index), self.counts.get_mut(index), self.rest.get_mut(index))
            {
                *known = key;
                *count = self.smallest.saturating_add(weight);
                *rest = SketchDetails { error: self.smallest, text };
            }
        }
        let index = if index < ENTRIES { index } else { self.from };
        if let Some(known) = self.prints.get_mut(index) {
            *known = print(key);
        }
    }

    fn find(&self, key: [u64; 2]) -> Option<usize> {
        let print = print(key);
        // Compares all without branches: most keys have no entry.
        if !self.prints.iter().fold(false, |any, known| any | (*known == print)) {
            return None;
        }
        self.keys.iter().position(|known| *known == key)
    }

    /// Returns the index of a smallest count, with all entries taken. Counts only grow, so entries before
    /// `from` have larger ones; a full scan runs only when none after it has the smallest.
    fn index_of_smallest(&mut self) -> usize {
        let left = self.counts.get(self.from..).unwrap_or_default();
        match left.iter().position(|count| *count == self.smallest) {
            Some(ahead) => self.from += ahead,
            None => {
                self.smallest = self.counts.iter().copied().min().unwrap_or_default();
                self.from = self.counts.iter().position(|count| *count == self.smallest).unwrap_or_default();
            }
        }
        self.from
    }

    pub(super) fn entries(&self) -> Vec<SketchEntry> {
        let columns = self.keys.iter().zip(&self.counts).zip(&self.rest);
        let entry = |((key, count), rest): ((&[u64; 2], &u64), &SketchDetails)| SketchEntry {
            key: *key,
            count: *count,
            error: rest.error,
            text: rest.text.clone(),
        };
        columns.map(entry).collect()
    }

    /// Halves all counts, so that old activity fades, and removes those that become zero.
    pub(super) fn halve(&mut self) {
        for (count, rest) in self.counts.iter_mut().zip(&mut self.rest) {
            // Both bounds are rounded like the true count, which stays between them.
            let at_least = (*count - rest.error) / 2;
            *count /= 2;
            rest.error = *count - at_least;
        }
        // Forces a full scan, because every count has changed.
        (self.smallest, self.from) = (0, ENTRIES);
        let mut index = 0;
        while let Some(count) = self.counts.get(index) {
            if *count > 0 {
                index += 1;
                continue;
            }
            self.prints.swap(index, self.keys.len() - 1);
            self.keys.swap_remove(index);
            self.counts.swap_remove(index);
            self.rest.swap_remove(index);
        }
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// The sketches of one rule by [`Ranking`], allocated with the first count.
#[derive(Debug, Default)]
pub(super) struct Sketches(Option<Box<[Sketch; 3]>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ranking {
    Busiest,
    Refused,
    /// By units that would have been refused if the rule were enforced.
    WouldRefuse,
}

impl Sketches {
    /// Counts a key in one ranking, as [`Sketch::add`] does.
    pub(super) fn add(
        &mut self,
        ranking: Ranking,
        key: [u64; 2],
        weight: u64,
        text: impl FnOnce() -> Option<Box<str>>,
    ) {
        if let Some(sketch) = self.0.get_or_insert_default().get_mut(ranking as usize) {
            sketch.add(key, weight, text);
        }
    }

    /// Returns the entries of one ranking, in any order.
    pub(super) fn entries(&self, ranking: Ranking) -> Vec<SketchEntry> {
        let sketch = self.0.as_ref().and_then(|all| all.get(ranking as usize));
        sketch.map(Sketch::entries).unwrap_or_default()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let Some(all) = &self.0 else { return 0 };
        let rest = all.iter().flat_map(|sketch| &sketch.rest);
        size_of_val(&**all) + rest.filter_map(|rest| rest.text.as_ref()).map(|text| text.len()).sum::<usize>()
    }

    /// Halves all counts; frees the memory once all are zero.
    pub(super) fn halve(&mut self) {
        let Some(all) = &mut self.0 else { return };
        all.iter_mut().for_each(Sketch::halve);
        if all.iter().all(Sketch::is_empty) {
            self.0 = None;
        }
    }
}

fn print([low, _]: [u64; 2]) -> u32 {
    let [low, _] = halves(low);
    low
}

/// Cuts a long text to its beginning and `~`.
fn truncate_text(text: Box<str>) -> Box<str> {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let kept = text.get(..text.floor_char_boundary(TEXT_BYTES_MAX - 1)).unwrap_or_default();
    format!("{kept}~").into()
}

/// Every key above 1/32 of the total has an entry, and a page shows ten. Counting costs O(entries).
const ENTRIES: usize = 32;

/// Enough for an address or an account; clients decide how long a value is.
const TEXT_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{ENTRIES, Sketch};

    const K: u64 = ENTRIES as u64;

    fn key(number: u64) -> [u64; 2] {
        // Many keys agree in one half of their digest, which is rare with real digests.
        [number / 2, number % 2]
    }

    /// The events of a sketch: a key is counted, or everything is halved.
    fn events() -> impl Strategy<Value = Vec<Option<(u64, u64)>>> {
        // The larger the number, the rarer.
        let number = (0_u32..10).prop_flat_map(|bits| 0..1_u64 << bits);
        let counted = (number, prop_oneof![8 => Just(1_u64), 1 => 0..100_u64]).prop_map(Some);
        prop::collection::vec(prop_oneof![200 => counted, 1 => Just(None)], 0..2_000)
    }

    proptest! {
        #[test]
        fn every_count_is_within_its_error(events in events()) {
            let mut sketch = Sketch::default();
            let mut exact: HashMap<[u64; 2], u64> = HashMap::new();
            let (mut total, mut halved) = (0, false);
            for event in events {
                match event {
                    Some((number, weight)) => {
                        sketch.add(key(number), weight, || None);
                        *exact.entry(key(number)).or_default() += weight;
                        total += weight;
                    }
                    None => {
                        sketch.halve();
                        exact.values_mut().for_each(|count| *count /= 2);
                        (total, halved) = (total / 2, true);
                    }
                }
            }
            let entries = sketch.entries();
            for entry in &entries {
                let count = exact.get(&entry.key).copied().unwrap_or_default();
                prop_assert!(entry.count >= count && entry.count - entry.error <= count, "{entry:?}: {count}");
                prop_assert!(entry.error <= total / K + u64::from(halved), "{entry:?} of {total}");
                prop_assert!(entry.count > 0);
            }
            for (key, count) in exact {
                prop_assert!(count <= total / K || entries.iter().any(|entry| entry.key == key), "{key:?}: {count}");
            }
        }
    }
}
