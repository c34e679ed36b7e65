//! The table of per-key sync state, by key and budget, and, in each bucket, in order of due time.

use super::command::Bucket;
use super::key_sync::KeySync;
use crate::clock::Timestamp;
use crate::engine::SharedKey;
use foldhash::fast::FixedState;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

#[derive(Debug, Default)]
pub(super) struct KeyTable {
    entries: Slab<KeySync>,
    /// Keys are digests under a secret, so that no client can force collisions, and a fast hash is safe.
    by_key: HashMap<SharedKey, usize, FixedState>,
    /// By bucket, as commands of some have to wait. Rescheduled entries occur more than once; the entry's own due time
    /// decides.
    due: BTreeMap<Bucket, BinaryHeap<Reverse<(Timestamp, usize)>>>,
}

impl KeyTable {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[allow(clippy::indexing_slicing, reason = "numbers are those of open entries")]
    pub(super) fn entry(&self, number: usize) -> &KeySync {
        &self.entries[number]
    }

    #[allow(clippy::indexing_slicing, reason = "as above: a key without an entry would lose its tokens")]
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

    /// Adds an entry, which is due at its time.
    pub(super) fn open(&mut self, entry: KeySync) -> usize {
        let (key, due) = (entry.key, entry.due);
        let number = self.entries.insert(entry);
        self.by_key.insert(key, number);
        self.schedule(number, due);
        number
    }

    /// Closes an entry and returns it, if it was open.
    pub(super) fn close(&mut self, number: usize) -> Option<KeySync> {
        let entry = self.entries.try_remove(number)?;
        self.by_key.remove(&entry.key);
        Some(entry)
    }

    pub(super) fn schedule(&mut self, number: usize, at: Timestamp) {
        let entry = self.entry_mut(number);
        entry.due = at;
        let bucket = entry.bucket;
        self.due.entry(bucket).or_default().push(Reverse((at, number)));
    }

    /// Takes the key of a bucket that has been due for longest.
    pub(super) fn take_due(&mut self, bucket: Bucket, now: Timestamp) -> Option<usize> {
        let of_bucket = self.due.get_mut(&bucket)?;
        loop {
            let Reverse((due, number)) = *of_bucket.peek().filter(|Reverse((due, _))| *due <= now)?;
            of_bucket.pop();
            let entry = self.entries.get(number).filter(|entry| entry.bucket == bucket && !entry.in_flight);
            if entry.is_some_and(|entry| entry.due == due) {
                return Some(number);
            }
        }
    }

    /// When the next key is due in one of these buckets.
    pub(super) fn next(&self, is_meant: impl Fn(Bucket) -> bool) -> Timestamp {
        let of_buckets = self.due.iter().filter(|(bucket, _)| is_meant(**bucket));
        let first = of_buckets.filter_map(|(_, due)| due.peek()).map(|Reverse((due, _))| *due).min();
        first.unwrap_or(NEVER)
    }
}

pub(super) const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);
