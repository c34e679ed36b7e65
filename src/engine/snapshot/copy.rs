//! Copies a snapshot out during operation, a few entries per lock, so that no decision waits longer than for
//! another decision. Concurrent changes may be included or not, independently for each key.

use std::collections::HashSet;

use super::{LeaseResource, SnapshotEntry, fingerprint_names};
use crate::clock::Now;
use crate::engine::Engine;
use crate::engine::check::SoftState;
use crate::engine::digest::TableKey;
use crate::engine::shards::{SHARDS, Shard, first_bits};
use crate::engine::table::{Copied, CopyProgress, StateTable};
use crate::engine::tag::{BlockedUntil, TableState};
use crate::limit::concurrency::Permits;
use crate::limit::fixed_window::FixedWindowState;
use crate::limit::share::CompactShare;
use crate::limit::sliding_log::SlidingLogState;
use crate::limit::sliding_window::SlidingWindowState;
use crate::limit::token_bucket::GcraState;

impl Engine {
    /// Visits all snapshot entries, without a lock held.
    ///
    /// A key may come twice if its table grew meanwhile: the later entry counts. Unused states are omitted.
    pub fn copy_out(&self, now: Now, visit: &mut dyn FnMut(SnapshotEntry)) {
        let rule_set = self.rule_set.load_full();
        visit(SnapshotEntry::Rules(fingerprint_names(&rule_set, &self.fingerprints)));
        let rules = self.previous_quotas.lock().with(&rule_set, &self.fingerprints);
        rules.into_iter().for_each(|rule| visit(SnapshotEntry::Rule(rule)));
        self.pools
            .all()
            .iter()
            .filter_map(|pool| pool.controller.lock().kept(pool.name()))
            .for_each(|pool| visit(SnapshotEntry::Pool(pool.into())));
        for shard in 0..SHARDS {
            self.copy_shard(shard, now, visit);
        }
        self.idempotency.copy_out(rule_set.number, now, visit);
        self.refundable_costs.costs.copy_out(now, |name, spent| visit(SnapshotEntry::Spent(name, spent)));
        self.copy_leases(visit);
    }

    /// Visits the sessions with their leases, and before the first lease of a shared concurrency limit's key that key.
    fn copy_leases(&self, visit: &mut dyn FnMut(SnapshotEntry)) {
        let is_shared = !self.fleet_concurrency_limits().is_empty();
        let mut visited = HashSet::new();
        self.leases.copy_out(&mut |entry| {
            if let SnapshotEntry::Lease(lease) = &entry
                && is_shared
            {
                for tie in lease.ties.iter() {
                    let LeaseResource::Permit(key) = tie else { continue };
                    let budget = self.shards.lock_for(&key).permits.find(&key).map(Permits::budget);
                    if let Some(budget) = budget.filter(|_| visited.insert(key)) {
                        visit(SnapshotEntry::Permits(key, budget));
                    }
                }
            }
            visit(entry);
        });
    }

    fn copy_shard(&self, shard: usize, now: Now, visit: &mut dyn FnMut(SnapshotEntry)) {
        let digest = |key: TableKey| key.digest(first_bits(shard));
        self.copy_table(shard, |shard| &shard.buckets, now, &mut |copies| {
            let arrivals = copies.map(|(key, state): (_, GcraState)| (digest(key), state.arrival()));
            visit(SnapshotEntry::Buckets(arrivals.collect()));
        });
        self.copy_table(shard, |shard| &shard.windows, now, &mut |copies| {
            let windows = copies.map(|(key, state): (_, FixedWindowState)| {
                let (began, count) = state.to_parts();
                (digest(key), began, count)
            });
            visit(SnapshotEntry::Windows(windows.collect()));
        });
        self.copy_table(shard, |shard| &shard.sliding_windows, now, &mut |copies| {
            copies.for_each(|(key, state): (_, SlidingWindowState)| {
                let (began, counts) = state.counts();
                visit(SnapshotEntry::SlidingWindow(digest(key), began, counts));
            });
        });
        self.copy_table(shard, |shard| &shard.logs, now, &mut |copies| {
            copies.for_each(|(key, state): (_, SlidingLogState)| {
                visit(SnapshotEntry::Log(digest(key), state.entries().collect()));
            });
        });
        self.copy_table(shard, |shard| &shard.shares, now, &mut |copies| {
            let shares = copies.filter_map(|(key, state): (_, CompactShare)| {
                let [fallback, in_redis] = state.outage_buckets(key.tag().scale(), now.at)?;
                Some((digest(key), fallback.arrival(), in_redis.arrival()))
            });
            visit(SnapshotEntry::Shares(shares.collect()));
        });
        self.copy_table(shard, |shard| &shard.blocks, now, &mut |copies| {
            copies.for_each(|(key, state): (_, BlockedUntil)| {
                visit(SnapshotEntry::Block(digest(key), state.0));
            });
        });
        self.copy_table(shard, |shard| &shard.soft_states, now, &mut |copies| {
            copies.for_each(|(key, state): (_, SoftState)| {
                visit(SnapshotEntry::Soft(digest(key), state.since, state.ends));
            });
        });
    }

    fn copy_table<S: TableState + Clone>(
        &self,
        shard: usize,
        table: fn(&Shard) -> &StateTable<S>,
        now: Now,
        visit: VisitCopies<'_, S>,
    ) {
        let piece = &mut |from: CopyProgress, piece, copies: &mut Vec<(TableKey, S)>| {
            table(&self.shards.lock(shard)).copy_piece(from, piece, now, copies)
        };
        copy_pieces(piece, visit);
    }
}

type CopyPiece<'c, S> = &'c mut dyn FnMut(CopyProgress, (usize, usize), &mut Vec<(TableKey, S)>) -> Copied;

type VisitCopies<'c, S> = &'c mut dyn FnMut(std::vec::Drain<'_, (TableKey, S)>);

/// Copies a table piece by piece, or at once after it was rebuilt too often. Visits the copies piece by piece.
pub(in crate::engine) fn copy_pieces<S>(piece: CopyPiece<'_, S>, visit: VisitCopies<'_, S>) {
    let (mut progress, mut moved, mut copies) = (CopyProgress::default(), 0, Vec::new());
    loop {
        let size = if moved < MOVED_MAX { PIECE } else { (usize::MAX, usize::MAX) };
        let copied = piece(progress, size, &mut copies);
        while !copies.is_empty() {
            visit(copies.drain(copies.len().saturating_sub(PIECE.0)..));
        }
        match copied {
            Copied::Some(next) => progress = next,
            Copied::All => return,
            Copied::Moved => (progress, moved) = (CopyProgress::default(), moved + 1),
        }
    }
}

/// Table buckets per lock, which take a few microseconds, and bytes of heap copied with them.
const PIECE: (usize, usize) = (512, 32 << 10);

/// A table is rebuilt at most a few times during a copy.
const MOVED_MAX: u32 = 4;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::copy_pieces;
    use crate::clock::{Now, Timestamp};
    use crate::engine::digest::{HashKey, TableKey};
    use crate::engine::memory::{Memory, MemoryKind};
    use crate::engine::table::StateTable;
    use crate::engine::tag::BlockedUntil;

    /// A table that grows between any two pieces of a copy.
    struct Filling {
        table: StateTable<BlockedUntil>,
        memory: Memory,
        keys: u64,
    }

    impl Filling {
        fn add(&mut self, keys: u64) {
            let hash = HashKey::from_bytes([7; 16]).for_purpose("test");
            for key in self.keys..self.keys + keys {
                let until = BlockedUntil(Timestamp::from_nanos(1_000 + key));
                self.table.insert(
                    hash.digest_bytes(&key.to_le_bytes()),
                    until,
                    &self.memory,
                    Now::at_nanos(1),
                );
            }
            self.keys += keys;
        }
    }

    #[test]
    fn copies_every_key_while_the_table_grows() {
        for (first, between) in [(2_000, 0), (2_000, 1), (2_000, 700), (5_000, 4_000), (700, 20_000)] {
            let memory = Memory::new(64 << 20);
            memory.share_out(&[MemoryKind::Blocks]);
            let mut filling = Filling { table: StateTable::new(MemoryKind::Blocks), memory, keys: 0 };
            filling.add(first);
            let (mut seen, mut pieces) = (HashSet::new(), 0);
            let piece = &mut |from, size, copies: &mut Vec<(TableKey, BlockedUntil)>| {
                pieces += 1;
                filling.add(if filling.keys < 100_000 { between } else { 0 });
                filling.table.copy_piece(from, size, Now::at_nanos(1), copies)
            };
            copy_pieces(piece, &mut |copies| seen.extend(copies.map(|(_, until)| until.0.as_nanos())));
            assert!((1_000..1_000 + first).all(|until| seen.contains(&until)), "{first} and {between}");
            assert!(pieces > 2, "{pieces} pieces");
        }
    }
}
