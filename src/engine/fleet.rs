//! Budgets that many hosts share, as whoever speaks with the others sees them: keys that are to be heard of elsewhere come
//! out, what the others answer goes in. Nothing here waits for anybody.

use super::Engine;
use super::control::{KeyError, RuleName};
use super::digest::{Digest, HashKey, Salt};
use super::places::PlacesBudget;
use super::ruling::comparable_share;
use super::shards::{Shard, Shards};
use super::sync::Mutex;
use super::tag::Tag;
use crate::clock::Now;
use crate::limit::Quota;
use crate::limit::share;
use crate::rules::RuleSet;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

pub use crate::limit::share::{More, Reported, Seen, Settled, Standing, Turns as WindowTurns};

/// A key of a budget that many hosts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKey {
    digest: Digest,
    budget: u64,
}

impl SharedKey {
    /// The key of a rule, and the number of its budget.
    pub(super) fn new(key: Digest, budget: u64) -> SharedKey {
        SharedKey { digest: key.tagged(Tag::NONE), budget }
    }

    /// What it is known by on every host that has the same secret: 14 bytes of digest and two of zero.
    #[must_use]
    pub fn name(&self) -> [u8; 16] {
        self.digest.to_bytes()
    }

    /// The digest that all its states on this host begin with.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// The digest of its state on this host.
    pub(super) fn state(&self, budget: &Budget) -> Digest {
        let (tag, salt) = budget.states;
        self.digest.of(tag, salt)
    }

    /// The number of its budget.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }
}

/// Numbers of one budget, with the name of its rule.
#[derive(Clone, Debug)]
pub struct Budget {
    /// The rule, with its domain before it.
    pub rule: Arc<str>,
    /// What all hosts together may admit.
    pub quota: share::Quota,
    /// What tells the states of its keys from those that cannot be compared.
    states: (Tag, Salt),
}

/// What this host has of one key that many hosts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareHere {
    /// What it is known by on every host.
    pub name: [u8; 16],
    /// The whole budget.
    pub limit: u32,
    /// What there is; `None`: nobody has asked for it here of late.
    pub there: Option<Reported>,
    /// Whether it is kept in touch about.
    pub is_in_touch: bool,
    /// What Redis last said of it, since it is heard.
    pub seen: Option<Seen>,
}

/// What an engine is that shares budgets with others.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pub(super) joined: OnceLock<Joined>,
    /// Those of the rules in force, by number.
    budgets: Mutex<Arc<HashMap<u64, Budget>>>,
    /// The same of limits on work at once.
    pub(super) limits: Mutex<Arc<HashMap<u64, PlacesBudget>>>,
    /// Of windows, what goes back.
    pub(super) returned: Returned,
}

#[derive(Debug)]
pub(super) struct Joined {
    /// Made of the fleet secret.
    key: HashKey,
    standing: Arc<Standing>,
}

impl Fleet {
    /// The secret that the keys of a rule are hashed with: that of all hosts, where the rule is theirs.
    pub(super) fn hash_key<'k>(&'k self, is_shared: bool, own: &'k HashKey) -> &'k HashKey {
        self.joined.get().filter(|_| is_shared).map_or(own, |joined| &joined.key)
    }

    /// Whether there are others that know keys by the same digests.
    pub(super) fn is_joined(&self) -> bool {
        self.joined.get().is_some()
    }

    /// Joins the budgets of rules that are about to be in force.
    pub(super) fn join(&self, rules: &RuleSet, own: &HashKey) {
        let Some(joined) = self.joined.get() else { return };
        let mut budgets = HashMap::new();
        let mut limits = HashMap::new();
        for domain in rules.domains() {
            for rule in domain.rules() {
                for (number, allowance) in rule.limit.allowances.iter().enumerate() {
                    let name = || Arc::from(format!("{}/{}", domain.name(), rule.name));
                    match allowance.as_ref().map(|it| &it.quota) {
                        Some(Quota::Share(quota)) => {
                            let name: Arc<str> = name();
                            let budget = budget_number(&joined.key, &name, number);
                            quota.join(&joined.standing, budget);
                            let states = comparable_share(quota, own);
                            let quota = quota.clone();
                            budgets.insert(budget, Budget { rule: name, quota, states });
                        }
                        Some(Quota::Places(quota)) => {
                            let name: Arc<str> = name();
                            let budget = budget_number(&joined.key, &name, number);
                            quota.join(&joined.standing, budget);
                            limits.insert(budget, PlacesBudget::new(name, quota, own));
                        }
                        _ => {}
                    }
                }
            }
        }
        *self.budgets.lock() = Arc::new(budgets);
        *self.limits.lock() = Arc::new(limits);
    }
}

/// The number of a rule's budget, and of which of its allowances: the same on all hosts with the same secret.
fn budget_number(key: &HashKey, rule: &str, allowance: usize) -> u64 {
    key.of_rule(rule, &allowance.to_string(), "budget").digest_bytes(b"").hash()
}

/// Keys of one shard that wait to be heard of elsewhere.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<SharedKey>);

impl Calls {
    /// Whether another fits. Who finds no room calls when it is next asked for.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < CALLS_MAX
    }

    /// Notes a key.
    pub(super) fn push(&mut self, key: Digest, budget: Option<u64>, shards: &Shards) {
        if let Some(budget) = budget {
            self.0.push(SharedKey::new(key, budget));
            shards.note_calling(&key);
        }
    }

    /// Notes a key of places.
    pub(super) fn push_place(&mut self, key: Digest, budget: u64, shards: &Shards) {
        self.0.push(SharedKey::new(key, budget));
        shards.note_places_calling(&key);
    }

    /// Takes what was noted.
    pub(super) fn take(&mut self, calls: &mut Vec<SharedKey>) {
        calls.append(&mut self.0);
    }
}

impl Engine {
    /// Shares the budgets of rules that are of the fleet, from the next rules that are installed. Keys are then known by
    /// the same digests on all hosts that have the same secret. Done once, before there are rules.
    pub fn join_fleet(&self, secret: HashKey) -> Arc<Standing> {
        let joined = || Joined { key: secret, standing: Arc::default() };
        Arc::clone(&self.fleet.joined.get_or_init(joined).standing)
    }

    /// Every budget that the rules in force share with other hosts, by number.
    #[must_use]
    pub fn budgets(&self) -> Arc<HashMap<u64, Budget>> {
        Arc::clone(&self.fleet.budgets.lock())
    }

    /// Takes the keys that have called since it was last asked.
    pub fn take_calls(&self, calls: &mut Vec<SharedKey>) {
        for shard in self.shards.take_calling() {
            calls.append(&mut self.shards.lock(shard).calls.0);
        }
    }

    /// Reports what there is of a key, after so many tokens of it have left the hand; returns how many did. `None`: there
    /// is nothing of it any more.
    #[must_use]
    pub fn report(&self, key: &SharedKey, budget: &Budget, back: u32, now: Now) -> Option<(Reported, u32)> {
        let mut shard = self.shards.lock(self.shards.of(&key.digest));
        let digest = key.state(budget);
        let said = self.change_found(&mut shard, &digest, budget, now, |share| {
            share.report(&budget.quota, now.at, back)
        });
        let (mut reported, back) = said?;
        if reported.returns > 0 && budget.quota.window().is_some() {
            reported.paid_us = self.fleet.returned.take(key);
        }
        Some((reported, back))
    }

    /// What there is of a key, unchanged.
    #[must_use]
    pub fn look_at(&self, key: &SharedKey, budget: &Budget, now: Now) -> Option<Reported> {
        let shard = self.shards.lock(self.shards.of(&key.digest));
        Some(shard.shares.find(&key.state(budget))?.unfold(&budget.quota, now.at).look(now.at))
    }

    /// What this host has of a key of a rule, unchanged. `None`: the rule shares no budget.
    ///
    /// # Errors
    /// The attributes name no key of the rule.
    pub fn share_of(
        &self,
        rule: &RuleName,
        attributes: &[(&str, &str)],
        now: Now,
    ) -> Result<Option<ShareHere>, KeyError> {
        let digest = self.key_of(rule, attributes)?.tagged(Tag::NONE);
        let rule = rule.to_string();
        let budgets = self.budgets();
        let mut of_rule: Vec<_> = budgets.iter().filter(|(_, budget)| *budget.rule == *rule).collect();
        // Of one that was never asked for it is not known which of the rule's budgets it would have: the largest.
        of_rule.sort_by_key(|(_, budget)| std::cmp::Reverse(budget.quota.bucket().burst()));
        let here = of_rule.into_iter().map(|(number, budget)| {
            let key = SharedKey { digest, budget: *number };
            let shard = self.shards.lock(self.shards.of(&digest));
            let state = shard.shares.find(&key.state(budget));
            let state = state.map(|state| state.unfold(&budget.quota, now.at));
            ShareHere {
                name: key.name(),
                limit: budget.quota.bucket().burst(),
                there: state.map(|state| state.look(now.at)),
                is_in_touch: state.is_some_and(|state| state.is_in_touch()),
                seen: state.and_then(|state| state.seen()),
            }
        });
        let here: Vec<ShareHere> = here.collect();
        Ok(here.iter().find(|here| here.there.is_some()).or(here.first()).copied())
    }

    /// Takes what the others have answered about a key. Returns how many tokens have lapsed, of what was in hand and of what
    /// was granted, and were not told of yet.
    pub fn settle(&self, key: &SharedKey, budget: &Budget, settled: &Settled, now: Now) -> u32 {
        let mut shard = self.shards.lock(self.shards.of(&key.digest));
        let digest = key.state(budget);
        let lapsed = self.change_found(&mut shard, &digest, budget, now, |share| {
            share.settle(&budget.quota, settled, now.at)
        });
        self.pass_on_call(&mut shard, key, &digest);
        // Where there is nothing of it any more nobody spends what was granted.
        lapsed.unwrap_or(settled.granted)
    }

    /// Changes what there is of a key, if there is anything.
    fn change_found<T>(
        &self,
        shard: &mut Shard,
        digest: &Digest,
        budget: &Budget,
        now: Now,
        change: impl FnOnce(&mut share::Share) -> T,
    ) -> Option<T> {
        let memory = self.shards.memory();
        let mut found = shard.shares.entry(digest)?;
        let (changed, grown) = found.change(|state| state.change(&budget.quota, now.at, change), memory);
        self.shards.count_evictions(shard.shares.make_good(memory, grown, now));
        Some(changed)
    }

    /// Notes the key where it calls.
    fn pass_on_call(&self, shard: &mut Shard, key: &SharedKey, digest: &Digest) {
        if shard.calls.has_room() && shard.shares.find_mut(digest).is_some_and(share::Folded::calls) {
            shard.calls.push(key.digest, Some(key.budget), &self.shards);
        }
    }

    /// Changes what there is of a key, whether or not there was anything.
    pub(super) fn change_share<T>(
        &self,
        key: &SharedKey,
        budget: &Budget,
        now: Now,
        change: impl FnOnce(&mut share::Share, &share::Quota) -> T,
    ) -> T {
        let mut shard = self.shards.lock(self.shards.of(&key.digest));
        let digest = key.state(budget);
        let quota = &budget.quota;
        let fresh = || share::Folded::fresh(quota, now.at);
        let change = |state: &mut share::Folded| state.change(quota, now.at, |share| change(share, quota));
        let (changed, evicted) = shard.shares.change(digest, self.shards.memory(), now, fresh, change);
        self.shards.count_evictions(evicted);
        self.pass_on_call(&mut shard, key, &digest);
        changed
    }

    /// Nothing more is said of a key until it calls again. Returns whether that may be: nothing is in hand, nothing owed.
    pub fn let_go(&self, key: &SharedKey, budget: &Budget, now: Now) -> bool {
        let mut shard = self.shards.lock(self.shards.of(&key.digest));
        let digest = key.state(budget);
        self.change_found(&mut shard, &digest, budget, now, |share| share.let_go(now.at)).unwrap_or(true)
    }
}

/// Calls that one shard keeps until they are taken: some thousand in a hundredth of a second.
const CALLS_MAX: usize = 4_096;

/// By key, the earliest moment by the clock of Redis, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Returned(Mutex<HashMap<([u8; 16], u64), u64>>);

impl Returned {
    /// Something goes back that was paid then; zero: it is of no window.
    pub(super) fn note(&self, key: &SharedKey, paid_us: u64) {
        if paid_us == 0 {
            return;
        }
        let mut returned = self.0.lock();
        let id = (key.name(), key.budget());
        if returned.len() >= RETURNED_MAX && !returned.contains_key(&id) {
            return;
        }
        let paid = returned.entry(id).or_insert(paid_us);
        *paid = paid_us.min(*paid);
    }

    /// When the first of what goes back now was paid.
    pub(super) fn take(&self, key: &SharedKey) -> Option<u64> {
        self.0.lock().remove(&(key.name(), key.budget()))
    }
}

/// Keys of which something is to go back: more than are called for in a second. What is beyond stays counted.
const RETURNED_MAX: usize = 1 << 14;
