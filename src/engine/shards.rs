//! The state tables, split into shards with a lock each.
//!
//! A shard holds one table of each kind, so that one lock covers all states of a key. Locks are taken in the
//! order of shards.

use super::check::SoftState;
use super::digest::{Digest, TableKey};
use super::fleet::SyncQueue;
use super::memory::{Memory, MemoryKind};
use super::snapshot::copy_pieces;
use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use super::table::{AnyTable, StateTable};
use super::tag::{BlockedUntil, TableState};
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::concurrency::{LeaseCount, Permits};
use crate::limit::fixed_window::FixedWindowState;
use crate::limit::share::CompactShare;
use crate::limit::sliding_log::SlidingLogState;
use crate::limit::sliding_window::SlidingWindowState;
use crate::limit::token_bucket::GcraState;

#[derive(Debug)]
pub(super) struct Shards {
    shards: Box<[PaddedShard]>,
    memory: Memory,
    /// Evicted keys whose state was not fresh.
    pub(super) evictions: AtomicU64,
    /// The shards with shares, and with permits, whose sync is due.
    pub(super) shares_due: DueShards,
    pub(super) permits_due: DueShards,
}

/// Shards with keys whose sync is due, one bit for each.
#[derive(Debug, Default)]
pub(super) struct DueShards(AtomicU64);

/// A shard on its own cache lines, against false sharing.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedShard(Mutex<Shard>);

#[derive(Debug)]
pub(super) struct Shard {
    /// Token and leaky buckets.
    pub(super) buckets: StateTable<GcraState>,
    pub(super) windows: StateTable<FixedWindowState>,
    pub(super) sliding_windows: StateTable<SlidingWindowState>,
    pub(super) logs: StateTable<SlidingLogState>,
    /// Lease counts, one for each key of a concurrency limit.
    pub(super) in_progress: StateTable<LeaseCount>,
    /// This host's shares of fleet budgets.
    pub(super) shares: StateTable<CompactShare>,
    /// Keys of shares whose sync is due.
    pub(super) share_sync_queue: SyncQueue,
    /// This host's permits of shared concurrency limits; their leases are counted in `in_progress`.
    pub(super) permits: StateTable<Permits>,
    pub(super) permit_sync_queue: SyncQueue,
    /// Keys blocked after a refusal.
    pub(super) blocks: StateTable<BlockedUntil>,
    pub(super) soft_states: StateTable<SoftState>,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            buckets: StateTable::new(MemoryKind::Buckets),
            windows: StateTable::new(MemoryKind::Windows),
            sliding_windows: StateTable::new(MemoryKind::SlidingWindows),
            logs: StateTable::new(MemoryKind::Logs),
            in_progress: StateTable::new(MemoryKind::InProgress),
            shares: StateTable::new(MemoryKind::Shares),
            share_sync_queue: SyncQueue::default(),
            permits: StateTable::new(MemoryKind::Permits),
            permit_sync_queue: SyncQueue::default(),
            blocks: StateTable::new(MemoryKind::Blocks),
            soft_states: StateTable::new(MemoryKind::SoftStates),
        }
    }

    pub(super) fn begin_progress(&mut self, digest: Digest, shards: &Shards, now: Now) {
        let (_, evicted) =
            self.in_progress.change(digest, &shards.memory, now, LeaseCount::default, LeaseCount::add_lease);
        shards.count_evictions(evicted);
    }

    /// Ends one lease of a key; the last one removes the state.
    pub(super) fn end_progress(&mut self, digest: &Digest, memory: &Memory) {
        // Only a lease ends a count, and each is counted before its grant.
        let state = self.in_progress.find_mut(digest);
        debug_assert!(state.is_some(), "a lease is counted from before its grant to its end");
        if state.is_some_and(|state| state.remove_lease() == 0) {
            self.in_progress.remove(digest, memory);
        }
    }

    pub(super) fn in_use(&self, key: impl Into<TableKey>) -> u32 {
        self.in_progress.find(key).map_or(0, |state| state.count())
    }

    /// All tables: those with a state of each key, then those of blocks and soft states.
    pub(super) fn tables(&mut self) -> ([&mut dyn AnyTable; 7], [&mut dyn AnyTable; 2]) {
        let of_keys: [&mut dyn AnyTable; 7] = [
            &mut self.buckets,
            &mut self.windows,
            &mut self.sliding_windows,
            &mut self.logs,
            &mut self.in_progress,
            &mut self.shares,
            &mut self.permits,
        ];
        (of_keys, [&mut self.blocks, &mut self.soft_states])
    }

    pub(super) fn keys(&mut self) -> usize {
        self.tables().0.iter().map(|table| table.len()).sum()
    }
}

impl Shards {
    pub(super) fn new(memory: Memory) -> Shards {
        let shards = (0..SHARDS).map(|_| PaddedShard(Mutex::new(Shard::new())));
        Shards {
            shards: shards.collect(),
            memory,
            evictions: AtomicU64::new(0),
            shares_due: DueShards::default(),
            permits_due: DueShards::default(),
        }
    }

    /// Locks one shard. A thread that locks several does so in ascending order.
    #[inline]
    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        #[allow(clippy::indexing_slicing, reason = "there are SHARDS of them, and the modulus is below that")]
        self.shards[shard % SHARDS].0.lock()
    }

    #[inline]
    pub(super) fn lock_for(&self, digest: &Digest) -> MutexGuard<'_, Shard> {
        self.lock(shard_of(digest))
    }

    pub(super) fn count_evictions(&self, evicted: u64) {
        if evicted > 0 {
            self.evictions.fetch_add(evicted, Ordering::Relaxed);
        }
    }

    pub(super) fn has_due_keys(&self) -> bool {
        [&self.shares_due, &self.permits_due].iter().any(|due| due.0.load(Ordering::Relaxed) != 0)
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// Removes fresh states from all shards in turn, some shards at each tick.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    last: Option<Timestamp>,
    /// Elapsed time not yet swept for.
    owed_nanos: u64,
    shard: usize,
}

impl Sweeper {
    /// Sweeps as many shards as the elapsed time requires. A round takes 3/4 of `window_min`, within
    /// [`ROUND_NANOS_MIN`] and [`ROUND_NANOS_MAX`], so that a key is removed within twice its window. Returns
    /// whether a round has ended.
    pub(super) fn advance(&mut self, shards: &Shards, now: Now, window_min: Micros) -> bool {
        let last = self.last.replace(now.at).unwrap_or(now.at);
        let round_nanos = (window_min.0.saturating_mul(750)).clamp(ROUND_NANOS_MIN, ROUND_NANOS_MAX);
        let elapsed_nanos = now.at.nanos_since(last);
        // At most one round: a second one would find nothing.
        self.owed_nanos = self.owed_nanos.saturating_add(elapsed_nanos).min(round_nanos);
        let shard_nanos = round_nanos / SHARDS as u64;
        let mut round_ends = false;
        while self.owed_nanos >= shard_nanos {
            self.owed_nanos -= shard_nanos;
            let shard = self.shard;
            // Releases the lock between steps.
            let sweep = |table: usize| {
                let mut shard = shards.lock(shard);
                let (of_keys, others) = shard.tables();
                let table = of_keys.into_iter().chain(others).nth(table);
                table.map(|table| table.sweep(STEP_BUCKETS, &shards.memory, now))
            };
            let mut table = 0;
            while let Some(is_done) = sweep(table) {
                table += usize::from(is_done);
            }
            self.shard = (self.shard + 1) % SHARDS;
            round_ends |= self.shard == 0;
        }
        round_ends
    }
}

impl DueShards {
    pub(super) fn mark(&self, key: &Digest) {
        self.0.fetch_or(1 << shard_of(key), Ordering::Relaxed);
    }

    /// Returns and clears the marked shards.
    pub(super) fn take(&self) -> impl Iterator<Item = usize> + use<> {
        // The common case, no bit set, must not write.
        let is_none = self.0.load(Ordering::Relaxed) == 0;
        let mut bits = if is_none { 0 } else { self.0.swap(0, Ordering::Relaxed) };
        std::iter::from_fn(move || {
            let index = bits.trailing_zeros() as usize;
            bits = if bits == 0 { return None } else { bits & (bits - 1) };
            Some(index)
        })
    }
}

#[inline]
pub(super) fn shard_of(key: &Digest) -> usize {
    shard_at(key.shard_bits().into()) as usize
}

/// The shard of keys with these bits. The first shard has twice as many keys as the last, and those between have every
/// number between: so they double one after the other, and a key takes about the same memory at any number of keys.
///
/// The first x of all keys are in the first 2ˣ - 1 of the shards, here by the first terms of its series, in 65 536ths. The last
/// term is larger than in the series, so that all shards have keys.
#[inline]
fn shard_at(bits: u32) -> u32 {
    let squared = 15_743 + ((4_367 * bits) >> 16);
    let slope = 45_426 + ((squared * bits) >> 16);
    (bits * slope) >> (u32::BITS - SHARDS.ilog2())
}

/// The first bits of a shard's keys, by bisection.
pub(super) fn first_bits(shard: usize) -> u16 {
    let (mut from, mut to) = (0, 65_536);
    while from < to {
        let middle = u32::midpoint(from, to);
        if (shard_at(middle) as usize) < shard {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    u16::try_from(from).unwrap_or(u16::MAX)
}

/// A table of what is remembered of a name for a time, in shards of its own.
#[derive(Debug)]
pub(super) struct NameTable<S>(Box<[Mutex<StateTable<S>>]>);

impl<S: TableState + Clone> NameTable<S> {
    pub(super) fn new() -> NameTable<S> {
        NameTable(
            (0..NAME_SHARDS).map(|_| Mutex::new(StateTable::new(MemoryKind::IdempotencyKeys))).collect(),
        )
    }

    /// Locks the shard of a name. Lock order: before any shard of states.
    pub(super) fn lock(&self, name: &Digest) -> MutexGuard<'_, StateTable<S>> {
        #[allow(
            clippy::indexing_slicing,
            reason = "there are NAME_SHARDS of them, and the shard is below that"
        )]
        self.0[name.shard(NAME_SHARDS)].lock()
    }

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
        for (bits, shard) in (0..).zip(&self.0) {
            let piece = &mut |from, size, copies: &mut Vec<(TableKey, S)>| {
                shard.lock().copy_piece(from, size, now, copies)
            };
            copy_pieces(piece, &mut |copies| {
                copies.for_each(|(name, state)| visit(name.digest(bits), state));
            });
        }
    }
}

/// Few requests have a name, so a few locks keep threads apart.
const NAME_SHARDS: usize = 16;

/// A judgement keeps its shards in a 64-bit set. Small shards are swept and grown quickly.
pub(super) const SHARDS: usize = 64;

/// Buckets swept under one lock: about 5 µs.
const STEP_BUCKETS: usize = 1_024;

/// Minimum round, 0.75 s: faster sweeps cost more than the memory is worth.
const ROUND_NANOS_MIN: u64 = 750_000_000;

const ROUND_NANOS_MAX: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::{SHARDS, first_bits, shard_at};

    #[test]
    fn every_shard_has_one_to_two_times_as_many_keys_as_the_last() {
        let mut sizes = [0_usize; SHARDS];
        (0..65_536).for_each(|bits| sizes[shard_at(bits) as usize] += 1);
        assert!(sizes.is_sorted_by(|one, next| one + 1 >= *next), "{sizes:?}");
        assert!(sizes.iter().all(|size| (740..=1_480).contains(size)), "{sizes:?}");
        for shard in 0..SHARDS {
            let first = u32::from(first_bits(shard));
            assert_eq!(shard_at(first) as usize, shard);
            assert!(first == 0 || shard_at(first - 1) as usize == shard - 1);
        }
    }
}
