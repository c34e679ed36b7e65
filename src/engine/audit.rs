//! Leases against the counters of concurrency limits and of pools: that they agree, and what is done where they do not. Each
//! place is taken and given back by one step on either side, so they never differ for long, unless something is wrong: then
//! the leases are believed.
//!
//! A counter that is too high refuses work for ever, one that is too low admits too much. Both are put right only when it
//! is certain: under the lock of the counter's shard, or of all leases for a pool, and with no place on its way between the
//! two sides.

use std::collections::HashMap;
use std::sync::Arc;

use super::Engine;
use super::digest::Digest;
use super::leases::{InPools, Tie};
use super::pool::{InPool, Pool};
use crate::clock::Now;
use crate::limit::concurrency::InProgress;

/// Leases counted against the counters of concurrency limits and of pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Places that leases hold.
    pub held: u64,
    /// Places that counters count.
    pub counted: u64,
    /// Keys on which the two do not agree: none, unless something is wrong.
    pub differing: u64,
    /// Pools whose numbers of busy slots or of pieces of work are not those of their leases: none, likewise.
    pub pools: u64,
}

/// The keys on which the two differ, and by how many places.
type Differing = HashMap<[u64; 2], (Digest, i64)>;

impl Engine {
    /// Counts leases against the counters of concurrency limits and of pools.
    ///
    /// They are looked at one after the other while work goes on, so a key differs for good only if it does each time, by
    /// the same number.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut audit = self.audited().0;
        audit.pools = self.differing_pools().len() as u64;
        audit
    }

    /// Counts leases against counters, and sets each counter that differs to what leases hold. Returns what was found, and
    /// how many counters, and pools, were set: one that places come to or go from meanwhile is left for the next time.
    pub fn repair(&self, now: Now) -> (Audit, u64) {
        let (mut audit, differing) = self.audited();
        let pools = self.differing_pools();
        audit.pools = pools.len() as u64;
        let mut by_shard: HashMap<usize, Vec<Digest>> = HashMap::new();
        for (digest, _) in differing.into_values() {
            by_shard.entry(self.shards.of(&digest)).or_default().push(digest);
        }
        let shards = by_shard.into_iter().map(|(shard, keys)| self.repair_shard(shard, &keys, now));
        let repaired = shards.sum::<u64>() + self.repair_pools(&pools, now);
        (audit, repaired)
    }

    /// The pools that count otherwise than their sessions, each time in the same way.
    fn differing_pools(&self) -> Vec<Arc<Pool>> {
        let pools = self.pools.all();
        let difference = |pool: &Arc<Pool>, sessions: &InPools| {
            let (held, counted) = (sessions.of(pool), pool.counted());
            InPool {
                busy: held.busy.wrapping_sub(counted.busy),
                critical: held.critical.wrapping_sub(counted.critical),
                others: held.others.wrapping_sub(counted.others),
            }
        };
        let mut differing: Vec<(Arc<Pool>, Option<InPool>)> =
            pools.into_iter().map(|pool| (pool, None)).collect();
        for _ in 0..AUDITS {
            if differing.is_empty() {
                break;
            }
            let sessions = self.leases.in_pools();
            differing.retain_mut(|(pool, before)| {
                let difference = difference(pool, &sessions);
                difference != InPool::default()
                    && before.replace(difference).is_none_or(|before| before == difference)
            });
        }
        differing.into_iter().map(|(pool, _)| pool).collect()
    }

    /// Sets what pools count to what their sessions hold. Returns of how many it changed something.
    fn repair_pools(&self, pools: &[Arc<Pool>], now: Now) -> u64 {
        if pools.is_empty() {
            return 0;
        }
        self.leases.while_still(|sessions| {
            let put_right = pools
                .iter()
                .filter(|pool| pool.put_right(sessions.of(pool), || self.leases.are_moving(), now.at));
            put_right.count() as u64
        })
    }

    fn audited(&self) -> (Audit, Differing) {
        let (mut audit, mut differing) = self.compare_leases();
        for _ in 1..AUDITS {
            if differing.is_empty() {
                break;
            }
            let again = self.compare_leases().1;
            differing.retain(|state, (_, difference)| {
                again.get(state).is_some_and(|(_, again)| again == difference)
            });
        }
        audit.differing = differing.len() as u64;
        (audit, differing)
    }

    /// By how many places leases and counters differ on a key, where they do.
    fn compare_leases(&self) -> (Audit, Differing) {
        let mut by_state = Differing::new();
        let mut audit = Audit::default();
        self.leases.each_tie(&mut |tie| {
            if let Tie::Place(digest) = tie {
                by_state.entry(name(digest)).or_insert((*digest, 0)).1 += 1;
                audit.held += 1;
            }
        });
        self.shards.each_in_progress(&mut |digest, count| {
            by_state.entry(name(digest)).or_insert((*digest, 0)).1 -= i64::from(count);
            audit.counted += u64::from(count);
        });
        by_state.retain(|_, (_, difference)| *difference != 0);
        (audit, by_state)
    }

    /// Sets the counters of some keys of one shard to what leases hold. Returns how many it changed.
    ///
    /// With the shard locked no place is taken or given back. One that a lease is yet to be granted for, or whose lease has
    /// gone already, is on its way: who brings it has said so before, and says when it has come. If nobody is on the way,
    /// neither before nor after the leases were counted, what they hold is what there is.
    fn repair_shard(&self, shard: usize, keys: &[Digest], now: Now) -> u64 {
        // The leases are looked at with the shard locked: nobody locks a shard who has a book of leases locked.
        let mut locked = self.shards.lock(shard);
        if self.leases.are_moving() {
            return 0;
        }
        let mut held: HashMap<[u64; 2], u32> = keys.iter().map(|key| (name(key), 0)).collect();
        self.leases.each_tie(&mut |tie| {
            if let Tie::Place(digest) = tie
                && let Some(count) = held.get_mut(&name(digest))
            {
                *count += 1;
            }
        });
        if self.leases.are_moving() {
            return 0;
        }
        let mut repaired = 0;
        for key in keys {
            let count = held.get(&name(key)).copied().unwrap_or(0);
            if locked.in_progress.find(key).map_or(0, |state| state.count()) != count {
                self.shards.count_evictions(locked.set_progress(*key, count, self.shards.memory(), now));
                repaired += 1;
            }
        }
        repaired
    }

    /// Counts a place that nobody holds, or forgets one that somebody does, as no fault should.
    #[cfg(test)]
    #[cfg(not(feature = "interleavings"))]
    pub(super) fn miscount(&self, key: usize, by: i32, now: Now) -> bool {
        let mut keys = Vec::new();
        self.shards.each_in_progress(&mut |digest, count| keys.push((*digest, count)));
        let Some((digest, count)) = keys.get(key % keys.len().max(1)) else { return false };
        let mut shard = self.shards.lock(self.shards.of(digest));
        shard.set_progress(*digest, count.saturating_add_signed(by), self.shards.memory(), now);
        true
    }

    /// All keys that are counted, to be repaired whether they differ or not: what is sound stays as it is.
    #[cfg(test)]
    pub(super) fn counted_keys(&self) -> Vec<Digest> {
        let mut keys = Vec::new();
        self.shards.each_in_progress(&mut |digest, _| keys.push(*digest));
        keys
    }

    /// All pools, likewise.
    #[cfg(test)]
    pub(super) fn repair_all_pools(&self, now: Now) -> u64 {
        self.repair_pools(&self.pools.all(), now)
    }

    #[cfg(test)]
    pub(super) fn repair_keys(&self, keys: &[Digest], now: Now) -> u64 {
        keys.iter().map(|key| self.repair_shard(self.shards.of(key), &[*key], now)).sum()
    }
}

fn name(digest: &Digest) -> [u64; 2] {
    [digest.hash(), digest.high()]
}

impl super::shards::Shard {
    /// Sets how much work of a key is in progress. Returns how many other keys had to go for it.
    fn set_progress(&mut self, digest: Digest, count: u32, memory: &super::memory::Memory, now: Now) -> u64 {
        if count == 0 {
            self.in_progress.remove(&digest, memory);
            return 0;
        }
        let set = |state: &mut InProgress| *state = InProgress::of(count);
        self.in_progress.change(digest, memory, now, InProgress::default, set).1
    }
}

/// How often a key must differ.
const AUDITS: usize = 3;

// The checker's locks are for its own tests alone.
#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests;
