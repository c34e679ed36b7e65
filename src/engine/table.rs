//! A bounded table of states by digest, one for each kind of state. It sweeps fresh states and shrinks.

use arrayvec::ArrayVec;
use hashbrown::HashTable;

use super::digest::{Digest, TableKey};
use super::memory::{Memory, MemoryKind};
use super::tag::{PINNED, TableState, Tag};
use crate::clock::Now;

#[derive(Debug)]
pub(super) struct StateTable<S> {
    entries: HashTable<TableEntry<S>>,
    sweep_at: usize,
    kind: MemoryKind,
    /// Counts relocations of its entries.
    layout: u64,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry<S> {
    key: TableKey,
    state: S,
}

impl<S> TableEntry<S> {
    fn hash(&self) -> u64 {
        self.key.hash()
    }
}

impl<S: TableState> TableEntry<S> {
    fn nanos_until_fresh(&self, now: Now) -> u64 {
        self.state.nanos_until_fresh(self.key.tag(), now)
    }

    /// The eviction weight: higher ones stay longer.
    fn weight(&self, now: Now) -> (u16, u64) {
        match self.nanos_until_fresh(now) {
            0 => FRESH,
            nanos => (self.state.weight(self.key.tag()), nanos),
        }
    }
}

impl<S: TableState> StateTable<S> {
    pub(super) fn new(kind: MemoryKind) -> StateTable<S> {
        StateTable { entries: HashTable::new(), sweep_at: 0, kind, layout: 0 }
    }

    #[inline]
    pub(super) fn find(&self, key: impl Into<TableKey>) -> Option<&S> {
        let key = key.into();
        self.entries.find(key.hash(), |entry| entry.key.is_same_state(&key)).map(|entry| &entry.state)
    }

    /// Returns the bucket index of a key, valid until the next insertion.
    #[inline]
    pub(super) fn find_index(&self, digest: &Digest) -> Option<usize> {
        let key = TableKey::from(digest);
        self.entries.find_bucket_index(key.hash(), |entry| entry.key.is_same_state(&key))
    }

    #[inline]
    pub(super) fn at(&self, index: usize) -> Option<(Tag, &S)> {
        self.entries.get_bucket(index).map(|entry| (entry.key.tag(), &entry.state))
    }

    /// Returns a key's state for a change in place. States with heap memory go through [`StateTable::change`].
    #[inline]
    pub(super) fn find_mut(&mut self, digest: &Digest) -> Option<&mut S> {
        let key = TableKey::from(digest);
        let entry = self.entries.find_mut(key.hash(), |entry| entry.key.is_same_state(&key))?;
        Some(&mut entry.state)
    }

    #[inline]
    pub(super) fn entry(&mut self, digest: &Digest) -> Option<TableSlot<'_, S>> {
        let (kind, key) = (self.kind, TableKey::from(digest));
        self.entries
            .find_mut(key.hash(), |entry| entry.key.is_same_state(&key))
            .map(|entry| TableSlot { entry, kind })
    }

    /// Changes the state of a key, or a new one. Returns the result and the number of non-fresh evictions.
    pub(super) fn change<T>(
        &mut self,
        digest: Digest,
        memory: &Memory,
        now: Now,
        fresh: impl FnOnce() -> S,
        change: impl FnOnce(&mut S) -> T,
    ) -> (T, u64) {
        self.change_at(None, digest, memory, now, fresh, |state| (change(state), digest.tag()))
    }

    /// Like [`StateTable::change`], with a new tag from the change. `index` is the key's last known bucket index.
    pub(super) fn change_at<T>(
        &mut self,
        index: Option<usize>,
        digest: Digest,
        memory: &Memory,
        now: Now,
        fresh: impl FnOnce() -> S,
        change: impl FnOnce(&mut S) -> (T, Tag),
    ) -> (T, u64) {
        let key = TableKey::from(&digest);
        let is = |entry: &TableEntry<S>| entry.key.is_same_state(&key);
        // An insertion since may have moved all entries.
        let index = index.filter(|index| self.entries.get_bucket(*index).is_some_and(is));
        let known = match index {
            Some(index) => self.entries.get_bucket_mut(index),
            None => self.entries.find_mut(key.hash(), is),
        };
        if let Some(entry) = known {
            let mut found = TableSlot { entry, kind: self.kind };
            let ((changed, tag), grown) = found.change(change, memory);
            found.set_tag(tag);
            return (changed, self.evict_bytes(memory, grown, now));
        }
        let mut state = fresh();
        let (changed, tag) = change(&mut state);
        (changed, self.insert(digest.tagged(tag), state, memory, now))
    }

    /// Adds an absent key. Returns the number of non-fresh states evicted for it.
    pub(super) fn insert(&mut self, digest: Digest, state: S, memory: &Memory, now: Now) -> u64 {
        let heap = state.heap_bytes();
        if heap > 0 {
            memory.settle(self.kind, 0, heap);
        }
        let full = self.entries.len() == self.entries.capacity();
        let evicted = if full { self.make_room(memory, now) } else { 0 };
        let before = self.bytes();
        let key = TableKey::from(&digest);
        self.entries.insert_unique(key.hash(), TableEntry { key, state }, TableEntry::hash);
        if full {
            // A table too small to evict from grows beyond the budget rather than refuse requests.
            memory.settle(self.kind, before, self.bytes());
        }
        evicted + self.evict_bytes(memory, heap, now)
    }

    /// Adds an absent key unless that requires an eviction. Returns whether it was added.
    pub(super) fn insert_if_room(&mut self, digest: Digest, state: S, memory: &Memory) -> bool {
        if self.entries.len() == self.entries.capacity() && !self.grow(memory) {
            return false;
        }
        let key = TableKey::from(&digest);
        self.entries.insert_unique(key.hash(), TableEntry { key, state }, TableEntry::hash);
        true
    }

    pub(super) fn each(&self, mut visit: impl FnMut(TableKey, &S)) {
        self.entries.iter().for_each(|entry| visit(entry.key, &entry.state));
    }

    fn remove_at(&mut self, index: usize, memory: &Memory) {
        if let Ok(entry) = self.entries.get_bucket_entry(index) {
            let (entry, _) = entry.remove();
            memory.settle(self.kind, entry.state.heap_bytes(), 0);
        }
    }

    fn bytes(&self) -> usize {
        self.entries.allocation_size()
    }

    /// Makes room by a rebuild, by growth, or by evictions. Returns the number of non-fresh ones evicted.
    #[cold]
    fn make_room(&mut self, memory: &Memory, now: Now) -> u64 {
        if self.grow(memory) {
            return 0;
        }
        let evicted = self.evict(0..self.entries.num_buckets(), memory, now);
        self.rebuild(memory);
        evicted
    }

    /// Makes room without evictions. False: the budget does not allow it.
    #[cold]
    fn grow(&mut self, memory: &Memory) -> bool {
        let buckets = self.entries.num_buckets();
        // Tombstones count against the capacity: with many of them a rebuild at the same size is enough.
        if buckets >= NEIGHBOURS && self.entries.len() < buckets / 8 * 5 {
            self.rebuild(memory);
            return true;
        }
        let doubled = allocation_size::<TableEntry<S>>(buckets.max(SMALLEST) * 2);
        if !memory.claim(self.kind, doubled) {
            return false;
        }
        let claimed = self.bytes() + doubled;
        self.layout += 1;
        self.entries.reserve(1, TableEntry::hash);
        memory.settle(self.kind, claimed, self.bytes());
        true
    }

    /// Evicts states if heap growth by `bytes` exceeds the budget. Returns the number of non-fresh ones.
    pub(super) fn evict_bytes(&mut self, memory: &Memory, bytes: usize, now: Now) -> u64 {
        if bytes == 0 || memory.claim(self.kind, 0) {
            return 0;
        }
        let buckets = self.entries.num_buckets();
        let mut evicted = 0;
        for _ in 0..TRIES {
            let first = if self.sweep_at < buckets { self.sweep_at } else { 0 };
            let end = buckets.min(first + NEIGHBOURS);
            evicted += self.evict(first..end, memory, now);
            self.sweep_at = end;
            if memory.claim(self.kind, 0) {
                break;
            }
        }
        evicted
    }

    /// Evicts one entry of every 16 neighbours: a fresh one, or else the one of the lowest weight, then the
    /// nearest to fresh. Returns the number of non-fresh ones.
    fn evict(&mut self, buckets: std::ops::Range<usize>, memory: &Memory, now: Now) -> u64 {
        let mut evicted = 0;
        for first in buckets.clone().step_by(NEIGHBOURS) {
            let neighbours: ArrayVec<((u16, u64), usize), NEIGHBOURS> = (first
                ..buckets.end.min(first + NEIGHBOURS))
                .filter_map(|index| Some((self.entries.get_bucket(index)?.weight(now), index)))
                .filter(|((weight, _), _)| *weight != PINNED)
                .collect();
            // Among few neighbours even the best choice may be poor; the next window has more.
            if neighbours.len() >= NEIGHBOURS / 2
                && let Some((weight, index)) = neighbours.into_iter().min()
            {
                self.remove_at(index, memory);
                evicted += u64::from(weight != FRESH);
            }
        }
        evicted
    }

    /// Rebuilds the table at its size. The memory budget's reserve covers the two copies.
    fn rebuild(&mut self, memory: &Memory) {
        let before = self.bytes();
        let mut anew = HashTable::with_capacity(capacity(self.entries.num_buckets()));
        memory.settle(self.kind, before, before + anew.allocation_size());
        for entry in self.entries.drain() {
            anew.insert_unique(entry.hash(), entry, TableEntry::hash);
        }
        let both = self.bytes() + anew.allocation_size();
        self.entries = anew;
        self.layout += 1;
        self.sweep_at = 0;
        memory.settle(self.kind, both, self.bytes());
    }
}

pub(super) trait AnyTable {
    fn len(&self) -> usize;

    /// Removes the state of a key. Returns whether there was one.
    fn remove(&mut self, digest: &Digest, memory: &Memory) -> bool;

    /// Drops fresh states from the next `buckets` buckets. Returns whether those were the last, and then shrinks a
    /// mostly empty table.
    fn sweep(&mut self, buckets: usize, memory: &Memory, now: Now) -> bool;
}

impl<S: TableState> AnyTable for StateTable<S> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn remove(&mut self, digest: &Digest, memory: &Memory) -> bool {
        let key = TableKey::from(digest);
        let is = |entry: &TableEntry<S>| entry.key.is_same_state(&key);
        let Ok(found) = self.entries.find_entry(key.hash(), is) else { return false };
        let (entry, _) = found.remove();
        memory.settle(self.kind, entry.state.heap_bytes(), 0);
        true
    }

    fn sweep(&mut self, buckets: usize, memory: &Memory, now: Now) -> bool {
        let end = self.entries.num_buckets().min(self.sweep_at.saturating_add(buckets));
        for index in self.sweep_at..end {
            if self.entries.get_bucket(index).is_some_and(|entry| entry.nanos_until_fresh(now) == 0) {
                self.remove_at(index, memory);
            }
        }
        self.sweep_at = end;
        if end < self.entries.num_buckets() {
            return false;
        }
        self.sweep_at = 0;
        if self.entries.len() < self.entries.num_buckets() / SHRINK_BELOW {
            let before = self.bytes();
            self.layout += 1;
            self.entries.shrink_to(self.entries.len() * 2, TableEntry::hash);
            memory.settle(self.kind, before, self.bytes());
        }
        true
    }
}

pub(super) struct TableSlot<'t, S> {
    entry: &'t mut TableEntry<S>,
    kind: MemoryKind,
}

impl<S: TableState> TableSlot<'_, S> {
    /// The tag of its last change.
    #[inline]
    pub(super) fn tag(&self) -> Tag {
        self.entry.key.tag()
    }

    #[inline]
    pub(super) fn set_tag(&mut self, tag: Tag) {
        if tag != self.tag() {
            self.entry.key.set_tag(tag);
        }
    }

    pub(super) fn state(&self) -> &S {
        &self.entry.state
    }

    /// Returns the state for a change that does not grow its heap memory.
    #[inline]
    pub(super) fn state_mut(&mut self) -> &mut S {
        &mut self.entry.state
    }

    /// Changes the state. Returns the result and the growth of its heap bytes, for [`StateTable::evict_bytes`].
    #[inline]
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut S) -> T, memory: &Memory) -> (T, usize) {
        let before = self.entry.state.heap_bytes();
        let changed = change(&mut self.entry.state);
        let after = self.entry.state.heap_bytes();
        if after != before {
            memory.settle(self.kind, before, after);
        }
        (changed, after.saturating_sub(before))
    }
}

/// Bytes of one bucket: the key, the state and the control byte.
pub(super) const fn bucket_bytes<S>() -> usize {
    size_of::<TableEntry<S>>() + 1
}

/// The entries that `buckets` buckets hold: 7/8, or all but one of fewer than 8.
fn capacity(buckets: usize) -> usize {
    if buckets < 8 { buckets.saturating_sub(1) } else { buckets / 8 * 7 }
}

/// Bytes that hashbrown allocates: entries, a control byte for each bucket, and one more group.
fn allocation_size<E>(buckets: usize) -> usize {
    buckets * (size_of::<E>() + 1) + NEIGHBOURS
}

const FRESH: (u16, u64) = (0, 0);

/// The entries compared for one eviction: one group of hashbrown.
const NEIGHBOURS: usize = 16;

const SMALLEST: usize = 2;

/// A table shrinks when less than 1/4 of its buckets are used.
const SHRINK_BELOW: usize = 4;

/// Maximum groups of 16 examined to compensate for one state that has grown.
const TRIES: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct CopyProgress {
    next: usize,
    /// The layout of the table when its first bucket was copied.
    layout: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Copied {
    Some(CopyProgress),
    All,
    /// The table was relocated: the copies may lack keys, so start again.
    Moved,
}

impl<S: TableState + Clone> StateTable<S> {
    /// Copies the non-fresh states of at most `buckets` buckets, up to about `bytes` of heap memory.
    pub(in crate::engine) fn copy_piece(
        &self,
        from: CopyProgress,
        (buckets, bytes): (usize, usize),
        now: Now,
        copies: &mut Vec<(TableKey, S)>,
    ) -> Copied {
        // With nothing copied yet, any layout will do.
        if from.next > 0 && from.layout != self.layout {
            return Copied::Moved;
        }
        let from = from.next;
        let all = self.entries.num_buckets();
        let end = all.min(from.saturating_add(buckets));
        let mut outside = 0;
        for index in from..end {
            let Some(entry) = self.entries.get_bucket(index) else { continue };
            if entry.nanos_until_fresh(now) > 0 {
                outside += entry.state.heap_bytes();
                copies.push((entry.key, entry.state.clone()));
            }
            if outside >= bytes && index + 1 < all {
                return Copied::Some(CopyProgress { next: index + 1, layout: self.layout });
            }
        }
        if end < all { Copied::Some(CopyProgress { next: end, layout: self.layout }) } else { Copied::All }
    }
}

impl<S: TableState> StateTable<S> {
    /// Restores a key, replacing its state. Returns the number of non-fresh states evicted for it.
    pub(in crate::engine) fn restore_entry(
        &mut self,
        digest: Digest,
        state: S,
        memory: &Memory,
        now: Now,
    ) -> u64 {
        self.remove(&digest, memory);
        self.insert(digest, state, memory, now)
    }
}
