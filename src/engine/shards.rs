//! The tables, cut into shards that are locked apart.
//!
//! A shard holds one table of each kind of state, so that one lock guards all that a key can be and the order of
//! locks is the order of shards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::digest::Digest;
use super::lock;
use super::memory::Memory;
use super::table::Table;
use crate::clock::{Micros, Timestamp};
use crate::limit::token_bucket::Gcra;

/// All state of the engine.
#[derive(Debug)]
pub(super) struct Shards {
    shards: Box<[Padded]>,
    memory: Memory,
    evictions: AtomicU64,
}

/// A shard on cache lines of its own, so that two threads in two shards do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// One table of each kind.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) buckets: Table<Gcra>,
}

impl Shards {
    pub(super) fn new(memory: Memory) -> Shards {
        let shard = || Padded(Mutex::new(Shard { buckets: Table::new() }));
        Shards { shards: (0..SHARDS).map(|_| shard()).collect(), memory, evictions: AtomicU64::new(0) }
    }

    /// The shard that a key lives in.
    #[inline]
    pub(super) fn of(&self, digest: &Digest) -> usize {
        digest.shard(SHARDS)
    }

    /// Locks one shard. Whoever holds several took them in ascending order.
    #[inline]
    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        #[allow(clippy::indexing_slicing, reason = "there are SHARDS of them, and the modulus is below that")]
        lock(&self.shards[shard % SHARDS].0)
    }

    /// Adds a key to a locked shard.
    pub(super) fn insert(&self, shard: &mut Shard, digest: Digest, state: Gcra, now: Timestamp) {
        let evicted = shard.buckets.insert(digest, state, &self.memory, now);
        if evicted > 0 {
            self.evictions.fetch_add(evicted, Ordering::Relaxed);
        }
    }

    pub(super) fn keys(&self) -> usize {
        (0..SHARDS).map(|shard| self.lock(shard).buckets.len()).sum()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Keys dropped for lack of room while they still mattered.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }
}

/// Walks round all shards, a little at each tick, and sweeps away the keys that are as good as new.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    last: Option<Timestamp>,
    shard: usize,
}

impl Sweeper {
    /// Sweeps as much as the time since the last call asks for: everything once in a round, which is the shortest
    /// time in which a key fills, within bounds.
    pub(super) fn advance(&mut self, shards: &Shards, now: Timestamp, window_min: Micros) {
        let Some(last) = self.last.replace(now) else { return };
        let round_micros = window_min.0.clamp(ROUND_MICROS_MIN, ROUND_MICROS_MAX);
        let elapsed_micros = u64::try_from(now.since(last).as_micros()).unwrap_or(u64::MAX).min(round_micros);
        let buckets: usize = (0..SHARDS).map(|shard| shards.lock(shard).buckets.buckets()).sum();
        let share = u128::from(elapsed_micros) * (buckets as u128) / u128::from(round_micros);
        let mut left = usize::try_from(share).unwrap_or(usize::MAX).max(STEP_BUCKETS);
        let mut ends = 0;
        // One round at most, however long the time: a second one would find nothing.
        while left > 0 && ends < SHARDS {
            let step = left.min(STEP_BUCKETS);
            let mut shard = shards.lock(self.shard);
            let before = shard.buckets.buckets();
            if shard.buckets.sweep(step, &shards.memory, now) {
                ends += 1;
                self.shard = (self.shard + 1) % SHARDS;
            }
            left -= step.min(before.max(1));
        }
    }
}

/// As many as a word has bits: the shards of a judgement are a bit set. Decision threads are few; so many shards
/// also keep the lock of one short while it is swept or grows.
pub(super) const SHARDS: usize = 64;

/// Buckets swept under one lock: about five microseconds.
const STEP_BUCKETS: usize = 1_024;

/// A round takes at least a second: sweeping faster would cost more than the memory is worth.
const ROUND_MICROS_MIN: u64 = 1_000_000;

/// A round takes at most a minute.
const ROUND_MICROS_MAX: u64 = 60_000_000;
