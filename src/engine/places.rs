//! Concurrency permits shared between hosts, as the sync task sees them.

use super::Engine;
use super::control::{KeyError, RuleName};
use super::digest::{Digest, HashKey, Salt};
use super::fleet::SharedKey;
use super::ruling::salt_of_places;
use super::shards::{SHARDS, Shard};
use super::tag::Tag;
use crate::clock::Now;
use crate::limit::places::{self, Permits};
use std::collections::HashMap;
use std::sync::Arc;

pub use crate::limit::places::{PermitReply as PlacesSettled, PermitReport as PlacesReported};

/// One shared concurrency limit, with the name of its rule.
#[derive(Clone, Debug)]
pub struct PlacesBudget {
    /// The rule as `domain/rule`.
    pub rule: Arc<str>,
    /// The limit over all hosts.
    pub quota: places::PermitQuota,
    salt: Salt,
}

impl PlacesBudget {
    pub(super) fn new(rule: Arc<str>, quota: &places::PermitQuota, own: &HashKey) -> PlacesBudget {
        PlacesBudget { rule, quota: quota.clone(), salt: salt_of_places(own) }
    }

    fn state(&self, key: &SharedKey) -> Digest {
        key.digest().of(Tag::NONE, self.salt)
    }
}

/// This host's part of one key of a shared concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesHere {
    /// The name of the key, the same on every host.
    pub name: [u8; 16],
    /// The limit over all hosts.
    pub max: u32,
    /// Permits that this host holds.
    pub held: u32,
    /// Leases in progress here.
    pub in_use: u32,
    /// Whether the key is tracked in Redis.
    pub is_in_touch: bool,
}

/// A permit reserved for a pending request.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedPlace {
    key: SharedKey,
    state: Digest,
}

/// This host's part of all keys of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacesSum {
    /// Permits held.
    pub held: u64,
    /// Leases in progress.
    pub in_use: u64,
}

impl Engine {
    /// Returns every shared concurrency limit of the rules in force, by number.
    #[must_use]
    pub fn places_budgets(&self) -> Arc<HashMap<u64, PlacesBudget>> {
        Arc::clone(&self.fleet.limits.lock())
    }

    /// Moves the keys whose sync became due since the last call into `calls`.
    pub fn take_place_calls(&self, calls: &mut Vec<SharedKey>) {
        for shard in self.shards.take_places_calling() {
            self.shards.lock(shard).place_calls.take(calls);
        }
    }

    /// Reads a key's state without changing it. `None`: there is no state of it.
    #[must_use]
    pub fn look_at_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> Option<PlacesReported> {
        let shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let places = shard.places.find(&digest).filter(|places| places.budget() == key.budget())?;
        Some(places.look(shard.in_use(&digest), now.at))
    }

    /// Reads a key's state for the sync that it requested; where permits are few, later idle ones request
    /// another sync.
    #[must_use]
    pub fn visit_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> Option<PlacesReported> {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        let places = shard.places.find_mut(&digest).filter(|places| places.budget() == key.budget())?;
        Some(places.visit(in_use, now.at))
    }

    /// Creates the state of a key that a request waits for, or moves it to the key's budget.
    pub fn know_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let state = budget.state(key);
        match shard.places.find_mut(&state) {
            Some(places) => places.move_to(key.budget()),
            None => {
                let fresh = Permits::of(key.budget());
                let evicted = shard.places.insert(state, fresh, self.shards.memory(), now);
                self.shards.count_evictions(evicted);
            }
        }
    }

    /// Reserves an idle permit of a key for a pending request, if there is one.
    #[must_use]
    pub fn claim_place(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> Option<ClaimedPlace> {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let state = budget.state(key);
        let in_use = shard.in_use(&state);
        let places = shard.places.find_mut(&state).filter(|places| places.budget() == key.budget())?;
        places.claim(in_use, now.at).then_some(ClaimedPlace { key: *key, state })
    }

    pub(super) fn unclaim_place(&self, place: &ClaimedPlace, now: Now) {
        let ClaimedPlace { key, state } = place;
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let in_use = shard.in_use(state);
        if let Some(places) = shard.places.find_mut(state) {
            places.unclaim(in_use, now.at);
            self.pass_on_place_call(&mut shard, key, state);
        }
    }

    /// Ends a lease of a key: its permit is idle, if this host holds one.
    pub(super) fn end_place(&self, state: &Digest, now: Now) {
        let mut shard = self.shards.lock(self.shards.of(state));
        let in_use = shard.end_progress(state, self.shards.memory());
        let Some(places) = shard.places.find_mut(state) else { return };
        places.end(in_use, now.at);
        if places.calls_soon() {
            let salt = salt_of_places(&self.options.hash_key);
            let key = SharedKey::new(state.of(Tag::NONE, salt), places.budget());
            self.pass_on_place_call(&mut shard, &key, state);
        }
    }

    fn pass_on_place_call(&self, shard: &mut Shard, key: &SharedKey, state: &Digest) {
        if shard.place_calls.has_room() && shard.places.find_mut(state).is_some_and(Permits::calls) {
            shard.place_calls.push_place(key.digest(), key.budget(), &self.shards);
        }
    }

    /// Reports a key's state to be synced; this host keeps at most `keep` permits.
    #[must_use]
    pub fn report_places(
        &self,
        key: &SharedKey,
        budget: &PlacesBudget,
        keep: u32,
        now: Now,
    ) -> Option<PlacesReported> {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        Some(shard.places.find_mut(&digest)?.report(keep, in_use, now.at))
    }

    /// Applies the reply of a sync to a key.
    pub fn settle_places(&self, key: &SharedKey, budget: &PlacesBudget, settled: &PlacesSettled, now: Now) {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        let Some(places) = shard.places.find_mut(&digest) else { return };
        places.settle(settled, in_use, now.at);
        self.pass_on_place_call(&mut shard, key, &digest);
    }

    /// Stops tracking a key until it requests a sync. Returns whether that is possible: no permit is held and
    /// no lease is in progress.
    pub fn let_go_of_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> bool {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        shard.places.find_mut(&digest).is_none_or(|places| places.let_go(in_use, now.at))
    }

    /// Returns this host's part of a rule's key without changing it. `None`: the rule has no shared
    /// concurrency limit.
    ///
    /// # Errors
    /// The attributes name no key of the rule.
    pub fn places_of(
        &self,
        rule: &RuleName,
        attributes: &[(&str, &str)],
        now: Now,
    ) -> Result<Option<PlacesHere>, KeyError> {
        let digest = self.key_of(rule, attributes)?;
        let rule = rule.to_string();
        let budgets = self.places_budgets();
        let mut of_rule: Vec<_> = budgets.iter().filter(|(_, budget)| *budget.rule == *rule).collect();
        // The limit of a key without state is not known: assume the rule's largest.
        of_rule.sort_by_key(|(_, budget)| std::cmp::Reverse(budget.quota.max()));
        let shard = self.shards.lock(self.shards.of(&digest));
        let here = of_rule.into_iter().map(|(number, budget)| {
            let key = SharedKey::new(digest, *number);
            let state = budget.state(&key);
            let places = shard.places.find(&state).filter(|places| places.budget() == *number);
            let is_here = places.is_some();
            let here = PlacesHere {
                name: key.name(),
                max: budget.quota.max(),
                held: places.map_or(0, |places| places.held(now.at)),
                in_use: shard.in_use(&state),
                is_in_touch: places.is_some_and(Permits::is_in_touch),
            };
            (is_here, here)
        });
        let here: Vec<(bool, PlacesHere)> = here.collect();
        Ok(here.iter().find(|(is_here, _)| *is_here).or(here.first()).map(|(_, here)| *here))
    }

    /// Sums this host's part of all keys of each limit, by the number of the limit.
    #[must_use]
    pub fn sum_places(&self, now: Now) -> HashMap<u64, PlacesSum> {
        let mut sums: HashMap<u64, PlacesSum> = HashMap::new();
        for shard in 0..SHARDS {
            let shard = self.shards.lock(shard);
            shard.places.each(|digest, places| {
                let sum = sums.entry(places.budget()).or_default();
                sum.held += u64::from(places.held(now.at));
                sum.in_use += u64::from(shard.in_use(digest));
            });
        }
        sums
    }
}
