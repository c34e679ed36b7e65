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

#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// Apart from the entries, so that the search for a key reads little memory.
    keys: ArrayVec<[u64; 2], ENTRIES>,
    entries: ArrayVec<SketchEntry, ENTRIES>,
    /// The entry that was taken over last; none since counts were halved. Its error was the smallest count, so another
    /// entry with that count is the next one to take over.
    last: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct SketchEntry {
    /// An upper bound of the key's count.
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
        // One half decides for most keys: two comparisons take fewer instructions than one of both halves.
        let known = self.keys.iter().position(|[low, high]| *low == key[0] && *high == key[1]);
        if let Some(entry) = known.and_then(|index| self.entries.get_mut(index)) {
            entry.count = entry.count.saturating_add(weight);
            return;
        }
        let mut entry = SketchEntry { count: weight, error: 0, text: text().map(truncate_text) };
        if self.keys.try_push(key).is_ok() {
            self.entries.push(entry);
        } else if let Some(index) = self.smallest()
            && let (Some(known), Some(smallest)) = (self.keys.get_mut(index), self.entries.get_mut(index))
        {
            self.last = Some(index);
            (entry.count, entry.error) = (smallest.count.saturating_add(weight), smallest.count);
            (*known, *smallest) = (key, entry);
        }
    }

    /// Returns the index of an entry with the smallest count.
    fn smallest(&self) -> Option<usize> {
        let next = self.last.and_then(|last| {
            let least = self.entries.get(last)?.error;
            let behind = self.entries.iter().skip(last).position(|entry| entry.count <= least);
            behind.map(|index| last + index)
        });
        let all =
            || self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.count).map(|(index, _)| index);
        next.or_else(all)
    }

    /// Halves all counts, so that old activity fades, and removes those that become zero.
    fn halve(&mut self) {
        self.last = None;
        for entry in &mut self.entries {
            // Both bounds are rounded like the true count, which stays between them.
            let at_least = (entry.count - entry.error) / 2;
            entry.count /= 2;
            entry.error = entry.count - at_least;
        }
        let mut counts = self.entries.iter().map(|entry| entry.count);
        self.keys.retain(|_| counts.next() != Some(0));
        self.entries.retain(|entry| entry.count > 0);
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

    /// Returns the keys and entries of one ranking, in any order.
    pub(super) fn entries(&self, ranking: Ranking) -> impl Iterator<Item = ([u64; 2], SketchEntry)> {
        let sketch = self.0.iter().filter_map(move |all| all.get(ranking as usize));
        sketch.flat_map(|sketch| sketch.keys.iter().copied().zip(sketch.entries.iter().cloned()))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let Some(all) = &self.0 else { return 0 };
        let entries = all.iter().flat_map(|sketch| &sketch.entries);
        size_of_val(&**all)
            + entries.filter_map(|entry| entry.text.as_ref()).map(|text| text.len()).sum::<usize>()
    }

    /// Halves all counts; frees the memory once all are zero.
    pub(super) fn halve(&mut self) {
        let Some(all) = &mut self.0 else { return };
        all.iter_mut().for_each(Sketch::halve);
        if all.iter().all(|sketch| sketch.keys.is_empty()) {
            self.0 = None;
        }
    }
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
