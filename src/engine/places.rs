//! Places of limits on work that many hosts share, as whoever speaks with the others sees them. Nothing here waits for
//! anybody.

use super::Engine;
use super::control::{KeyError, RuleName};
use super::digest::{Digest, HashKey, Salt};
use super::fleet::SharedKey;
use super::ruling::salt_of_places;
use super::shards::{SHARDS, Shard};
use super::tag::Tag;
use crate::clock::Now;
use crate::limit::places::{self, Places};
use std::collections::HashMap;
use std::sync::Arc;

pub use crate::limit::places::{Reported as PlacesReported, Settled as PlacesSettled};

/// The number of one limit on work that hosts share, with the name of its rule.
#[derive(Clone, Debug)]
pub struct PlacesBudget {
    /// The rule, with its domain before it.
    pub rule: Arc<str>,
    /// How much at once on all hosts together.
    pub quota: places::Quota,
    /// What tells the states of its keys from all others.
    salt: Salt,
}

impl PlacesBudget {
    pub(super) fn new(rule: Arc<str>, quota: &places::Quota, own: &HashKey) -> PlacesBudget {
        PlacesBudget { rule, quota: quota.clone(), salt: salt_of_places(own) }
    }

    fn state(&self, key: &SharedKey) -> Digest {
        key.digest().of(Tag::NONE, self.salt)
    }
}

/// What this host has of one key of a limit on work that many hosts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesHere {
    /// What it is known by on every host.
    pub name: [u8; 16],
    /// The most at once on all hosts together.
    pub max: u32,
    /// Places that this host has.
    pub held: u32,
    /// Work in progress here.
    pub in_use: u32,
    /// Whether it is kept in touch about.
    pub is_in_touch: bool,
}

/// A place that is kept for who has waited for it.
#[derive(Clone, Copy, Debug)]
pub struct ClaimedPlace {
    key: SharedKey,
    state: Digest,
}

/// What this host has of all keys of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacesSum {
    /// Places.
    pub held: u64,
    /// Work in progress.
    pub in_use: u64,
}

impl Engine {
    /// Every limit on work that the rules in force share with other hosts, by number.
    #[must_use]
    pub fn places_budgets(&self) -> Arc<HashMap<u64, PlacesBudget>> {
        Arc::clone(&self.fleet.limits.lock())
    }

    /// Takes the keys of places that have called since it was last asked.
    pub fn take_place_calls(&self, calls: &mut Vec<SharedKey>) {
        for shard in self.shards.take_places_calling() {
            self.shards.lock(shard).place_calls.take(calls);
        }
    }

    /// What there is of a key, unchanged. `None`: there is nothing of it any more.
    #[must_use]
    pub fn look_at_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> Option<PlacesReported> {
        let shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let places = shard.places.find(&digest).filter(|places| places.budget() == key.budget())?;
        Some(places.look(shard.in_use(&digest), now.at))
    }

    /// The same, by whoever was told that the key calls: what lies idle from now on is told of anew.
    #[must_use]
    pub fn visit_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> Option<PlacesReported> {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        let places = shard.places.find_mut(&digest).filter(|places| places.budget() == key.budget())?;
        Some(places.visit(in_use, now.at))
    }

    /// Somebody waits for a place of a key, whether or not there was anything of it here.
    pub fn know_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let state = budget.state(key);
        match shard.places.find_mut(&state) {
            Some(places) => places.move_to(key.budget()),
            None => {
                let fresh = Places::of(key.budget());
                let evicted = shard.places.insert(state, fresh, self.shards.memory(), now);
                self.shards.count_evictions(evicted);
            }
        }
    }

    /// Keeps an idle place of a key for who waits for it, if there is one.
    #[must_use]
    pub fn claim_place(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> Option<ClaimedPlace> {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let state = budget.state(key);
        let in_use = shard.in_use(&state);
        let places = shard.places.find_mut(&state).filter(|places| places.budget() == key.budget())?;
        places.claim(in_use, now.at).then_some(ClaimedPlace { key: *key, state })
    }

    /// A place is kept for nobody any more.
    pub(super) fn unclaim_place(&self, place: &ClaimedPlace, now: Now) {
        let ClaimedPlace { key, state } = place;
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let in_use = shard.in_use(state);
        if let Some(places) = shard.places.find_mut(state) {
            places.unclaim(in_use, now.at);
            self.pass_on_place_call(&mut shard, key, state);
        }
    }

    /// A piece of work has ended: its place is idle, if this host has one of the key.
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

    /// Notes the key where it calls.
    fn pass_on_place_call(&self, shard: &mut Shard, key: &SharedKey, state: &Digest) {
        if shard.place_calls.has_room() && shard.places.find_mut(state).is_some_and(Places::calls) {
            shard.place_calls.push_place(key.digest(), key.budget(), &self.shards);
        }
    }

    /// Reports what there is of a key, of which this host keeps at most so many places.
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

    /// Takes what the others have answered about a key.
    pub fn settle_places(&self, key: &SharedKey, budget: &PlacesBudget, settled: &PlacesSettled, now: Now) {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        let Some(places) = shard.places.find_mut(&digest) else { return };
        places.settle(settled, in_use, now.at);
        self.pass_on_place_call(&mut shard, key, &digest);
    }

    /// Nothing more is said of a key until it calls again. Returns whether that may be: no place is held, and nothing is in
    /// progress.
    pub fn let_go_of_places(&self, key: &SharedKey, budget: &PlacesBudget, now: Now) -> bool {
        let mut shard = self.shards.lock(self.shards.of(&key.digest()));
        let digest = budget.state(key);
        let in_use = shard.in_use(&digest);
        shard.places.find_mut(&digest).is_none_or(|places| places.let_go(in_use, now.at))
    }

    /// What this host has of a key of a rule, unchanged. `None`: the rule shares no places.
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
        // Which of the rule's limits a key has, that was never asked for, is not known: the largest.
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
                is_in_touch: places.is_some_and(Places::is_in_touch),
            };
            (is_here, here)
        });
        let here: Vec<(bool, PlacesHere)> = here.collect();
        Ok(here.iter().find(|(is_here, _)| *is_here).or(here.first()).map(|(_, here)| *here))
    }

    /// What this host has of all keys of each limit, by its number.
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
