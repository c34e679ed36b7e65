//! Tables of what is remembered of a name for a time, in shards of their own.

use super::digest::Digest;
use super::memory::MemoryKind;
use super::shards::Shards;
use super::snapshot::copy_pieces;
use super::sync::{Mutex, MutexGuard};
use super::table::StateTable;
use super::tag::TableState;
use crate::clock::Now;

#[derive(Debug)]
pub(super) struct NameTable<S>(Box<[Mutex<StateTable<S>>]>);

impl<S: TableState + Clone> NameTable<S> {
    pub(super) fn new() -> NameTable<S> {
        NameTable((0..SHARDS).map(|_| Mutex::new(StateTable::new(MemoryKind::IdempotencyKeys))).collect())
    }

    /// Locks the shard of a name. Lock order: before any shard of states.
    pub(super) fn lock(&self, name: &Digest) -> MutexGuard<'_, StateTable<S>> {
        #[allow(clippy::indexing_slicing, reason = "there are SHARDS of them, and the shard is below that")]
        self.0[name.shard(SHARDS)].lock()
    }

    /// Sets the state of a name.
    pub(super) fn put(&self, name: Digest, state: S, shards: &Shards, now: Now) {
        let evicted = self.lock(&name).restore_entry(name, state, shards.memory(), now);
        shards.count_evictions(evicted);
    }

    pub(super) fn forget(&self, name: &Digest, shards: &Shards) {
        self.lock(name).remove(name, shards.memory());
    }

    /// Removes expired names.
    pub(super) fn sweep(&self, shards: &Shards, now: Now) {
        for shard in &self.0 {
            while !shard.lock().sweep(STEP_BUCKETS, shards.memory(), now) {}
        }
    }

    /// Copies all names that have not expired, a piece per lock.
    pub(super) fn copy_out(&self, now: Now, mut visit: impl FnMut(Digest, S)) {
        for shard in &self.0 {
            let piece = &mut |from, size, copies: &mut Vec<(Digest, S)>| {
                shard.lock().copy_piece(from, size, now, copies)
            };
            copy_pieces(piece, &mut |copies| copies.for_each(|(name, state)| visit(name, state)));
        }
    }
}

/// Few requests have a name, so a few locks keep threads apart.
const SHARDS: usize = 16;

/// Buckets swept under one lock.
const STEP_BUCKETS: usize = 1_024;
