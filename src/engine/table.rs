//! A table of states by digest, one for each kind of state: bounded, swept, shrinking.

use arrayvec::ArrayVec;
use hashbrown::HashTable;

use super::digest::Digest;
use super::memory::Memory;
use crate::clock::Timestamp;
use crate::limit::token_bucket::Gcra;

/// A state that, left alone, ends as good as new: then it need not be kept.
pub(super) trait Fading: Copy {
    /// Nanoseconds until it equals a fresh one; zero when it does.
    fn nanos_until_fresh(&self, digest: &Digest, now: Timestamp) -> u64;
}

impl Fading for Gcra {
    #[inline]
    fn nanos_until_fresh(&self, digest: &Digest, now: Timestamp) -> u64 {
        let scale = digest.scale();
        self.ticks_until_full(scale, now).div_ceil(u64::from(scale.ticks_per_nano()))
    }
}

/// States by digest.
#[derive(Debug)]
pub(super) struct Table<S> {
    entries: HashTable<Entry<S>>,
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry<S> {
    digest: Digest,
    state: S,
}

impl<S> Entry<S> {
    fn hash(&self) -> u64 {
        self.digest.hash()
    }
}

impl<S: Fading> Table<S> {
    pub(super) fn new() -> Table<S> {
        Table { entries: HashTable::new(), sweep_at: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place of a key, good until the table is next inserted into, and its state.
    #[inline]
    pub(super) fn find(&self, digest: &Digest) -> Option<(usize, S)> {
        let place = self.entries.find_bucket_index(digest.hash(), |entry| entry.digest == *digest)?;
        self.entries.get_bucket(place).map(|entry| (place, entry.state))
    }

    /// The state of a key, to be changed.
    #[inline]
    pub(super) fn find_mut(&mut self, digest: &Digest) -> Option<&mut S> {
        let entry = self.entries.find_mut(digest.hash(), |entry| entry.digest == *digest)?;
        Some(&mut entry.state)
    }

    /// Changes the state at a place that [`Table::find`] gave.
    #[inline]
    pub(super) fn update(&mut self, place: usize, state: S) {
        if let Some(entry) = self.entries.get_bucket_mut(place) {
            entry.state = state;
        }
    }

    /// Adds a key that is not there. Returns how many others, not yet fresh, had to go for it.
    pub(super) fn insert(&mut self, digest: Digest, state: S, memory: &Memory, now: Timestamp) -> u64 {
        let full = self.entries.len() == self.entries.capacity();
        let evicted = if full { self.make_room(memory, now) } else { 0 };
        let before = self.bytes();
        self.entries.insert_unique(digest.hash(), Entry { digest, state }, Entry::hash);
        if full {
            // A table too small to let anybody go grows all the same: no request is refused for lack of room.
            memory.settle(before, self.bytes());
        }
        evicted
    }

    /// Looks at the next `buckets` buckets and drops what is as good as new. Returns whether those were the last;
    /// then the table has shrunk if it was mostly empty.
    pub(super) fn sweep(&mut self, buckets: usize, memory: &Memory, now: Timestamp) -> bool {
        let end = self.entries.num_buckets().min(self.sweep_at.saturating_add(buckets));
        for place in self.sweep_at..end {
            let fresh = |entry: &Entry<S>| entry.state.nanos_until_fresh(&entry.digest, now) == 0;
            if self.entries.get_bucket(place).is_some_and(fresh) {
                self.remove(place);
            }
        }
        self.sweep_at = end;
        if end < self.entries.num_buckets() {
            return false;
        }
        self.sweep_at = 0;
        if self.entries.len() < self.entries.num_buckets() / SHRINK_BELOW {
            let before = self.bytes();
            self.entries.shrink_to(self.entries.len() * 2, Entry::hash);
            memory.settle(before, self.bytes());
        }
        true
    }

    fn remove(&mut self, place: usize) {
        if let Ok(entry) = self.entries.get_bucket_entry(place) {
            entry.remove();
        }
    }

    fn bytes(&self) -> usize {
        self.entries.allocation_size()
    }

    /// Makes room for insertions within the budget: drops the marks of removed entries, or grows, or lets some
    /// keys go. Returns how many of those still mattered.
    #[cold]
    fn make_room(&mut self, memory: &Memory, now: Timestamp) -> u64 {
        let buckets = self.entries.num_buckets();
        // Removed entries leave marks that count against the capacity. Where they are many, the table is large
        // enough and only wants to be laid out anew.
        if buckets >= NEIGHBOURS && self.entries.len() < buckets / 8 * 5 {
            self.rebuild(memory);
            return 0;
        }
        let doubled = allocation_size::<Entry<S>>(buckets.max(SMALLEST) * 2);
        if memory.claim(doubled) {
            let claimed = self.bytes() + doubled;
            self.entries.reserve(1, Entry::hash);
            memory.settle(claimed, self.bytes());
            return 0;
        }
        let evicted = self.evict(now);
        self.rebuild(memory);
        evicted
    }

    /// Of every 16 neighbours lets the one go that is nearest to fresh. Returns how many were not.
    fn evict(&mut self, now: Timestamp) -> u64 {
        let buckets = self.entries.num_buckets();
        let mut evicted = 0;
        for first in (0..buckets).step_by(NEIGHBOURS) {
            let neighbours: ArrayVec<(u64, usize), NEIGHBOURS> = (first..buckets.min(first + NEIGHBOURS))
                .filter_map(|place| {
                    let entry = self.entries.get_bucket(place)?;
                    Some((entry.state.nanos_until_fresh(&entry.digest, now), place))
                })
                .collect();
            // Among few neighbours even the nearest may be far; the next window has more to choose from.
            if neighbours.len() >= NEIGHBOURS / 2
                && let Some((nanos_until_fresh, place)) = neighbours.into_iter().min()
            {
                self.remove(place);
                evicted += u64::from(nanos_until_fresh > 0);
            }
        }
        evicted
    }

    /// Lays the entries out anew in as many buckets, for a moment beside the old ones: that is what a part of the
    /// budget is kept back for.
    fn rebuild(&mut self, memory: &Memory) {
        let before = self.bytes();
        let mut anew = HashTable::with_capacity(self.entries.num_buckets() / 8 * 7);
        memory.settle(before, before + anew.allocation_size());
        for entry in &self.entries {
            anew.insert_unique(entry.hash(), *entry, Entry::hash);
        }
        let both = self.bytes() + anew.allocation_size();
        self.entries = anew;
        self.sweep_at = 0;
        memory.settle(both, self.bytes());
    }
}

/// What hashbrown allocates for so many buckets: the entries, a control byte for each, one group more.
fn allocation_size<E>(buckets: usize) -> usize {
    buckets * (size_of::<E>() + 1) + NEIGHBOURS
}

/// How many neighbours are compared before one goes. It is also hashbrown's group.
const NEIGHBOURS: usize = 16;

/// Buckets of the smallest table.
const SMALLEST: usize = 2;

/// A table shrinks when less than one bucket in so many is used.
const SHRINK_BELOW: usize = 4;
