//! Concurrency permits shared between hosts, as the sync task sees them.

use super::Engine;
use super::control::{KeyError, NamedKey, RuleName};
use super::digest::Digest;
use super::fleet::{FleetConcurrencyLimit, SharedKey};
use super::rule_set::permit_salt;
use super::shards::{SHARDS, Shard, Shards};
use super::tag::Tag;
use crate::clock::Now;
use crate::limit::concurrency::Permits;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

pub use crate::limit::concurrency::PermitReply;

/// This host's part of one key of a shared concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPermits {
    /// The name of the key, the same on every host.
    pub name: [u8; 16],
    /// The limit over all hosts.
    pub max: u32,
    /// Permits that this host holds.
    pub held: u32,
    /// Leases in progress here.
    pub in_use: u32,
    /// Whether the key is tracked in Redis.
    pub is_tracked: bool,
}

/// A permit reserved for a pending request.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedPermit {
    state: Digest,
}

/// This host's part of all keys of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PermitTotals {
    /// Permits held.
    pub held: u64,
    /// Leases in progress.
    pub in_use: u64,
}

impl Shards {
    /// Changes the permits of a key, or new ones, under the budget of the key, and queues it if its sync is due.
    pub(super) fn change_permits(
        &self,
        shard: &mut Shard,
        key: &SharedKey,
        state: Digest,
        now: Now,
        change: impl FnOnce(&mut Permits),
    ) {
        let may_call = shard.permit_sync_queue.has_room();
        let change = |permits: &mut Permits| {
            permits.set_budget(key.budget());
            change(permits);
            may_call && permits.take_sync_due()
        };
        let fresh = || Permits::none_of(key.budget());
        let (calls, evicted) = shard.permits.change(state, self.memory(), now, fresh, change);
        self.count_evictions(evicted);
        if calls {
            shard.permit_sync_queue.push(key.digest, Some(key.budget()), &self.permits_due);
        }
    }
}

impl Engine {
    /// Returns every shared concurrency limit of the rules in force, by number.
    pub fn fleet_concurrency_limits(&self) -> Arc<HashMap<u64, FleetConcurrencyLimit>> {
        Arc::clone(&self.fleet.concurrency_limits.lock())
    }

    /// Moves the keys whose sync became due since the last call into `calls`.
    pub fn take_due_permit_keys(&self, calls: &mut Vec<SharedKey>) {
        for shard in self.shards.permits_due.take() {
            calls.append(&mut self.shards.lock(shard).permit_sync_queue.0);
        }
    }

    /// Returns the permits that this host needs of a key, with the limit that holds for it now, and returns all others.
    /// `None`: there is no state of the key.
    #[must_use]
    pub fn report_permits(&self, key: &SharedKey, now: Now) -> Option<(u32, SharedKey)> {
        self.change_permits(&self.permit_state(key), |permits, in_use| {
            (permits.report(in_use, now.at), SharedKey::new(key.digest, permits.budget()))
        })
    }

    /// Creates the state of a key that a request waits for, or moves it to the key's budget.
    pub fn create_permits(&self, key: &SharedKey, now: Now) {
        self.create_and_change_permits(key, now, |_| ());
    }

    fn create_and_change_permits(&self, key: &SharedKey, now: Now, change: impl FnOnce(&mut Permits)) {
        let mut shard = self.shards.lock_for(&key.digest);
        self.shards.change_permits(&mut shard, key, self.permit_state(key), now, change);
    }

    /// Reserves an idle permit of a key for a pending request, if there is one.
    #[must_use]
    pub fn claim_permit(&self, key: &SharedKey, now: Now) -> Option<ClaimedPermit> {
        let state = self.permit_state(key);
        let is_reserved = self.change_permits(&state, |permits, in_use| {
            permits.budget() == key.budget() && permits.reserve(in_use, now.at)
        });
        is_reserved?.then_some(ClaimedPermit { state })
    }

    pub(super) fn unclaim_permit(&self, claimed: &ClaimedPermit, now: Now) {
        self.change_permits(&claimed.state, |permits, in_use| permits.release_reservation(in_use, now.at));
    }

    /// Lets the request be judged for which the permit is reserved, until the offer is [ended](Engine::end_permit_offer).
    pub(super) fn offer_permit(&self, claimed: &ClaimedPermit) {
        self.change_permits(&claimed.state, |permits, _| permits.offer());
    }

    /// Ends the offer of a permit, which is idle unless a request has taken it.
    pub(super) fn end_permit_offer(&self, claimed: &ClaimedPermit, now: Now) {
        self.change_permits(&claimed.state, |permits, in_use| permits.end_offer(in_use, now.at));
    }

    /// Ends a lease of a key: its permit is idle, if this host holds one.
    pub(super) fn release_permit(&self, state: &Digest, now: Now) {
        let mut shard = self.shards.lock_for(state);
        shard.end_progress(state, self.shards.memory());
        self.change_permits_in(&mut shard, state, |permits, in_use| permits.record_end(in_use, now.at));
    }

    /// Has the request that is judged at this moment judged by the fallback of the key's limit.
    pub(super) fn record_unanswered_permit(&self, key: &SharedKey, now: Now) {
        self.create_and_change_permits(key, now, |permits| permits.record_unanswered(now.at));
    }

    /// Applies the reply of a sync to a key.
    pub fn apply_permit_reply(&self, key: &SharedKey, reply: &PermitReply, now: Now) {
        let state = self.permit_state(key);
        self.change_permits(&state, |permits, in_use| permits.apply_reply(reply, in_use, now.at));
    }

    /// Stops tracking a key until it requests a sync. Returns whether that is possible: no permit is held and
    /// no lease is in progress.
    pub fn remove_permits(&self, key: &SharedKey, now: Now) -> bool {
        let stop = |permits: &mut Permits, in_use| permits.stop_tracking(in_use, now.at);
        self.change_permits(&self.permit_state(key), stop).unwrap_or(true)
    }

    /// The digest of a key's state, the same under each limit of its rule.
    fn permit_state(&self, key: &SharedKey) -> Digest {
        key.digest.with_tag_and_salt(Tag::NONE, permit_salt(&self.options.hash_key))
    }

    /// Changes the permits of a state, if there are any, by the number of leases in progress.
    fn change_permits<T>(&self, state: &Digest, change: impl FnOnce(&mut Permits, u32) -> T) -> Option<T> {
        self.change_permits_in(&mut self.shards.lock_for(state), state, change)
    }

    fn change_permits_in<T>(
        &self,
        shard: &mut Shard,
        state: &Digest,
        change: impl FnOnce(&mut Permits, u32) -> T,
    ) -> Option<T> {
        let Shard { permits, in_progress, permit_sync_queue, .. } = shard;
        let permits = permits.find_mut(state)?;
        let in_use = in_progress.find(state).map_or(0, |leases| leases.count());
        let changed = change(permits, in_use);
        if permit_sync_queue.has_room() && permits.take_sync_due() {
            // The salt, mixed in twice, cancels.
            let key = state.with_tag_and_salt(Tag::NONE, permit_salt(&self.options.hash_key));
            permit_sync_queue.push(key, Some(permits.budget()), &self.shards.permits_due);
        }
        Some(changed)
    }

    /// Returns this host's part of a rule's key without changing it. `None`: the rule has no shared
    /// concurrency limit.
    ///
    /// # Errors
    /// The attributes or the digest name no key of the rule.
    pub fn find_permits<'k>(
        &self,
        rule: &RuleName,
        key: impl Into<NamedKey<'k>>,
        now: Now,
    ) -> Result<Option<HostPermits>, KeyError> {
        let digest = self.find_key(rule, key.into())?;
        let rule = rule.to_string();
        let budgets = self.fleet_concurrency_limits();
        let mut of_rule: Vec<_> = budgets.iter().filter(|(_, budget)| *budget.rule == *rule).collect();
        // The limit of a key without state is not known: assume the rule's largest.
        of_rule.sort_by_key(|(_, budget)| std::cmp::Reverse(budget.quota.max()));
        let shard = self.shards.lock_for(&digest);
        let here = of_rule.into_iter().map(|(number, budget)| {
            let key = SharedKey::new(digest, *number);
            let state = self.permit_state(&key);
            let permits = shard.permits.find(&state).filter(|permits| permits.budget() == *number);
            let is_here = permits.is_some();
            let here = HostPermits {
                name: key.name(),
                max: budget.quota.max(),
                held: permits.map_or(0, |permits| permits.unexpired(now.at)),
                in_use: shard.in_use(&state),
                is_tracked: permits.is_some_and(Permits::is_tracked),
            };
            (is_here, here)
        });
        let here: Vec<(bool, HostPermits)> = here.collect();
        Ok(here.iter().find(|(is_here, _)| *is_here).or(here.first()).map(|(_, here)| *here))
    }

    /// Sums this host's part of all keys of each limit, by the number of the limit.
    pub fn sum_permits(&self, now: Now) -> HashMap<u64, PermitTotals> {
        let mut sums: HashMap<u64, PermitTotals> = HashMap::new();
        for shard in 0..SHARDS {
            let shard = self.shards.lock(shard);
            shard.permits.each(|key, permits| {
                let sum = sums.entry(permits.budget()).or_default();
                sum.held += u64::from(permits.unexpired(now.at));
                sum.in_use += u64::from(shard.in_use(key));
            });
        }
        sums
    }
}
