//! The table of per-key sync state, by key and budget, and in order of due time.

use super::key_sync::KeySync;
use crate::clock::Timestamp;
use crate::engine::SharedKey;
use foldhash::fast::FixedState;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

#[derive(Debug, Default)]
pub(super) struct KeyTable {
    entries: Slab<KeySync>,
    /// Keys are digests under a secret, so that no client can force collisions, and a fast hash is safe.
    by_key: HashMap<SharedKey, usize, FixedState>,
    /// Rescheduled entries occur more than once; the entry's own due time decides.
    due: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl KeyTable {
    /// Makes the entry wait for its bucket: it is not due until scheduled again.
    pub(super) fn wait(&mut self, number: usize) {
        let entry = self.entry_mut(number);
        (entry.due, entry.waits) = (NEVER, true);
    }

    /// Ends the entry's wait. Returns whether it did wait: it may have been closed meanwhile and its number reused.
    pub(super) fn wake(&mut self, number: usize) -> bool {
        let entry = self.entries.get_mut(number);
        entry.is_some_and(|entry| std::mem::take(&mut entry.waits) && !entry.in_flight)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[allow(clippy::indexing_slicing, reason = "numbers are those of open entries")]
    pub(super) fn entry(&self, number: usize) -> &KeySync {
        &self.entries[number]
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "as above: the tokens of a key without an entry would be lost"
    )]
    pub(super) fn entry_mut(&mut self, number: usize) -> &mut KeySync {
        &mut self.entries[number]
    }

    /// The entry at `number`, if it still belongs to this cell.
    pub(super) fn entry_of(&mut self, number: usize, cell: &[u8; 16]) -> Option<&mut KeySync> {
        self.entries.get_mut(number).filter(|entry| entry.cell == *cell)
    }

    pub(super) fn find(&self, key: &SharedKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The numbers of all entries, in ascending order.
    pub(super) fn numbers(&self) -> Vec<usize> {
        self.entries.iter().map(|(number, _)| number).collect()
    }

    pub(super) fn open(&mut self, entry: KeySync) -> usize {
        let key = entry.key;
        let number = self.entries.insert(entry);
        self.by_key.insert(key, number);
        number
    }

    /// Closes an entry and returns it, if it was open.
    pub(super) fn close(&mut self, number: usize) -> Option<KeySync> {
        let entry = self.entries.try_remove(number)?;
        self.by_key.remove(&entry.key);
        Some(entry)
    }

    pub(super) fn schedule(&mut self, number: usize, at: Timestamp) {
        self.entry_mut(number).due = at;
        self.due.push(Reverse((at, number)));
    }

    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<usize> {
        loop {
            let Reverse((due, number)) = *self.due.peek().filter(|Reverse((due, _))| *due <= now)?;
            self.due.pop();
            if self.entries.get(number).is_some_and(|entry| entry.due == due && !entry.in_flight) {
                return Some(number);
            }
        }
    }

    pub(super) fn next(&self) -> Timestamp {
        self.due.peek().map_or(NEVER, |Reverse((due, _))| *due)
    }
}

pub(super) const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);
