//! Restores a snapshot into an engine that has no rules and no clients yet.
//!
//! Permit counts are not stored: every restored lease takes its own permits, so that both always agree.

use super::{OpenSession, SnapshotEntry, StoredPool};
use crate::clock::Now;
use crate::engine::Engine;
use crate::engine::check::SoftState;
use crate::engine::digest::Digest;
use crate::engine::leases::{ConnectionParams, Lease, LeaseResource, Session};
use crate::engine::memory::Memory;
use crate::engine::rule_set::permit_salt;
use crate::engine::shards::Shard;
use crate::engine::table::StateTable;
use crate::engine::tag::{BlockedUntil, TableState, Tag};
use crate::limit::concurrency::Permits;
use crate::limit::fixed_window::FixedWindowState;
use crate::limit::share::CompactShare;
use crate::limit::sliding_log::SlidingLogState;
use crate::limit::sliding_window::SlidingWindowState;
use crate::limit::token_bucket::GcraState;

/// An entry that no engine produces: the snapshot is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it holds {0}")]
pub struct InvalidEntry(pub(super) &'static str);

/// A restore in progress. Restored sessions wait for their connections from its end.
#[derive(Debug)]
pub struct Restore<'e> {
    engine: &'e Engine,
    now: Now,
    /// The session of the following leases; `None` if it does not fit.
    session: Option<Session>,
    is_any_session: bool,
}

impl Engine {
    /// Begins to restore the entries of [`Engine::copy_out`], in the same order. Call it before rules are
    /// installed and before any request; after an error the engine is unusable.
    #[must_use]
    pub fn putting_back(&self, now: Now) -> Restore<'_> {
        Restore { engine: self, now, session: None, is_any_session: false }
    }

    /// Sets the first lease number: a random one, so that lease numbers differ from those of earlier
    /// processes.
    pub fn number_leases_from(&self, random: u64) {
        self.leases.numbers.begin_at(random);
    }
}

impl Restore<'_> {
    /// Restores one entry.
    ///
    /// # Errors
    /// No engine produces such an entry.
    pub fn put(&mut self, stored: SnapshotEntry) -> Result<(), InvalidEntry> {
        match stored {
            SnapshotEntry::Rules(names) => self.engine.previous_quotas.lock().names = Some(names),
            SnapshotEntry::Rule(rule) => self.engine.previous_quotas.lock().add(rule),
            SnapshotEntry::Pool(pool) => self.pool(&pool)?,
            SnapshotEntry::Buckets(buckets) => {
                for (key, arrival) in buckets {
                    self.state(key, GcraState::from_arrival(arrival), |shard| &mut shard.buckets);
                }
            }
            SnapshotEntry::Windows(windows) => {
                for (key, began, count) in windows {
                    let state = FixedWindowState::from_parts(began, count);
                    self.state(key, state, |shard| &mut shard.windows);
                }
            }
            SnapshotEntry::SlidingWindow(key, began, counts) => {
                let state = SlidingWindowState::from_counts(began, &counts);
                let state = state.ok_or(InvalidEntry("a sliding window of no such size"))?;
                self.state(key, state, |shard| &mut shard.sliding_windows);
            }
            SnapshotEntry::Log(key, entries) => {
                let state = SlidingLogState::from_entries(&entries)
                    .ok_or(InvalidEntry("a log that is out of order"))?;
                self.state(key, state, |shard| &mut shard.logs);
            }
            SnapshotEntry::Shares(shares) => {
                for (key, fallback, in_redis) in shares {
                    let buckets = [fallback, in_redis].map(GcraState::from_arrival);
                    let state = CompactShare::in_outage(buckets, key.tag().scale(), self.now.at);
                    self.state(key, state, |shard| &mut shard.shares);
                }
            }
            SnapshotEntry::Permits(key, budget) => self.restore_permits(key, budget),
            SnapshotEntry::Block(key, until) => {
                self.state(key, BlockedUntil(until), |shard| &mut shard.blocks);
            }
            SnapshotEntry::Soft(key, since, ends) => {
                self.state(key, SoftState { since, ends }, |shard| &mut shard.soft_states);
            }
            SnapshotEntry::Repeat(name, granted) => {
                self.engine.idempotency.restore(name, granted, &self.engine.shards, self.now);
            }
            SnapshotEntry::Spent(name, spent) => {
                self.engine.refundable_costs.restore(name, spent, &self.engine.shards, self.now);
            }
            SnapshotEntry::Session(session) => self.session(&session),
            SnapshotEntry::Lease(lease) => self.lease(*lease)?,
        }
        Ok(())
    }

    fn state<S: TableState>(&self, digest: Digest, state: S, table: fn(&mut Shard) -> &mut StateTable<S>) {
        let shards = &self.engine.shards;
        let memory: &Memory = shards.memory();
        if state.nanos_until_fresh(digest.tag(), self.now) == 0 {
            return;
        }
        let evicted = table(&mut shards.lock_for(&digest)).restore_entry(digest, state, memory, self.now);
        shards.count_evictions(evicted);
    }

    /// Restores a key of a fleet concurrency limit and queues it for an immediate sync.
    fn restore_permits(&self, key: Digest, budget: u64) {
        self.state(key, Permits::from_previous_process(budget, self.now.at), |shard| &mut shard.permits);
        let (state, shards) = (key, &self.engine.shards);
        // The salt, mixed in twice, cancels.
        let key = state.with_tag_and_salt(Tag::NONE, permit_salt(&self.engine.options.hash_key));
        let mut shard = shards.lock_for(&state);
        if shard.permit_sync_queue.has_room() {
            shard.permit_sync_queue.push(key, Some(budget), &shards.permits_due);
        }
    }

    fn pool(&self, stored: &StoredPool) -> Result<(), InvalidEntry> {
        let numbers = stored.parameters.iter().chain([&stored.severity]);
        if !numbers.into_iter().all(|number| number.is_finite()) {
            return Err(InvalidEntry("a severity that is no number"));
        }
        self.engine.pools.find_or_create(&stored.name).controller.lock().inherit(stored, self.now.at);
        Ok(())
    }

    /// Sessions that ended and began during the copy may exceed the maximum: excess sessions and their leases
    /// are skipped.
    fn session(&mut self, stored: &OpenSession) {
        self.end_session();
        let opening = ConnectionParams {
            name: Some(stored.name),
            user: stored.user,
            pool: &stored.pool,
            slots: stored.slots,
            connection: 0,
            pid: stored.pid,
        };
        self.session = self.engine.open_session(&opening, self.now).ok();
        self.is_any_session = true;
    }

    fn lease(&self, stored: Lease) -> Result<(), InvalidEntry> {
        if stored.number == 0 || !self.is_any_session {
            return Err(InvalidEntry("a lease of no session"));
        }
        let Some(session) = &self.session else { return Ok(()) };
        let (engine, pool) = (self.engine, session.pool());
        if engine.leases.is_live(session, stored.number, self.now) {
            return Ok(());
        }
        let (is_noncritical, ties) = (stored.is_noncritical, stored.ties.clone());
        if engine.leases.restore(session, stored, self.now).is_none() {
            return Ok(());
        }
        pool.add_lease(is_noncritical, None);
        let shards = &engine.shards;
        for tie in ties.iter() {
            if let LeaseResource::Permit(digest) = tie {
                shards.lock_for(&digest).begin_progress(digest, shards, self.now);
            }
        }
        Ok(())
    }

    fn end_session(&mut self) {
        // Its connections are closed: start its grace period.
        if let Some(session) = self.session.take() {
            self.engine.close_connection(&session, self.now);
        }
    }
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.end_session();
    }
}

/// The number of the first rule set, if its rules are still those of the stored grants.
pub(in crate::engine) const FIRST_RULE_SET: u64 = 1;
