//! The engine's side of fleet budgets, used by the sync task: keys to synchronize come out, replies from
//! Redis go in. Nothing here blocks on the network.

use super::Engine;
use super::control::{KeyError, NamedKey, RuleName};
use super::digest::{Digest, HashKey, Salt};
use super::rule_set::{is_shared, share_tag_and_salt};
use super::shards::{DueShards, Shard};
use super::sync::Mutex;
use super::tag::Tag;
use crate::clock::Now;
use crate::limit::concurrency::ConcurrencyQuota;
use crate::limit::{Quota, share};
use crate::rules::{Allowance, Domain};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

pub use crate::limit::share::{
    FleetStatus, HOLD, KeyCheckReply, NextIncrease, RedisLevel, ShareReply, ShareReport,
    WindowSchedule as WindowTurns,
};

/// A key of a fleet budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SharedKey {
    /// The digest from which those of its states on this host derive.
    pub(super) digest: Digest,
    budget: u64,
}

impl SharedKey {
    /// Makes it from the key of a rule and the number of its budget.
    pub(super) fn new(key: Digest, budget: u64) -> SharedKey {
        SharedKey { digest: key.tagged(Tag::NONE), budget }
    }

    /// The fleet-wide name of the key: 14 bytes of digest and two zero bytes. Equal on all hosts with the
    /// same secret.
    pub fn name(&self) -> [u8; 16] {
        u128::from(self.digest).to_le_bytes()
    }

    /// The number of its budget.
    pub const fn budget(&self) -> u64 {
        self.budget
    }
}

/// The quota of a fleet rule for some of its keys: of one entry, or of several with equal numbers.
#[derive(Clone, Debug)]
pub struct FleetBudget {
    /// The rule as `domain/rule`.
    pub rule: Arc<str>,
    /// The number of the rule, equal on all hosts with the same secret.
    pub rule_number: u64,
    /// Equal on all hosts whose rule has the same numbers for the same requests.
    pub fingerprint: u64,
    /// The quota of all hosts together.
    pub quota: share::ShareQuota,
    /// Whether an entry of the rules in force has this quota. Keys that were last used under the rules before may still be in
    /// sync under those.
    pub is_in_force: bool,
    /// Separates the states of its keys from those under other numbers.
    states: (Tag, Salt),
    /// Separates the cells of windows from those of buckets and of other windows.
    windows: Salt,
}

impl FleetBudget {
    /// The digest of the state of a key.
    fn state(&self, key: &SharedKey) -> Digest {
        let (tag, salt) = self.states;
        key.digest.with_tag_and_salt(tag, salt)
    }

    /// The fleet-wide name of the cell of a key: the same under all entries that are buckets, and under all with equal windows.
    pub fn cell(&self, key: &SharedKey) -> [u8; 16] {
        u128::from(key.digest.with_tag_and_salt(Tag::NONE, self.windows)).to_le_bytes()
    }
}

/// A shared concurrency limit.
#[derive(Clone, Debug)]
pub struct FleetConcurrencyLimit {
    /// The rule as `domain/rule`.
    pub rule: Arc<str>,
    /// The number of the rule, equal on all hosts with the same secret.
    pub rule_number: u64,
    /// The quota of all hosts together.
    pub quota: ConcurrencyQuota,
}

/// This host's share of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// The fleet-wide name of the key.
    pub name: [u8; 16],
    /// The limit of the whole budget.
    pub limit: u32,
    /// The state on this host; `None` if the key was not used here recently.
    pub report: Option<ShareReport>,
    /// Whether the key is tracked in Redis.
    pub is_tracked: bool,
    /// The last reply of Redis about the key.
    pub redis_level: Option<RedisLevel>,
}

#[derive(Debug, Default)]
pub(super) struct FleetMembership {
    pub(super) joined: OnceLock<JoinedFleet>,
    /// The fleet budgets of the rules in force and of those before, by number.
    budgets: Mutex<Arc<HashMap<u64, FleetBudget>>>,
    /// The fleet concurrency limits of the rules in force, by number.
    pub(super) concurrency_limits: Mutex<Arc<HashMap<u64, FleetConcurrencyLimit>>>,
    /// The earliest payment of refunded tokens of windows.
    pub(super) refund_times: RefundTimes,
}

#[derive(Debug)]
pub(super) struct JoinedFleet {
    /// Derived from the fleet secret.
    key: HashKey,
    status: Arc<FleetStatus>,
}

impl FleetMembership {
    /// Returns the secret for the keys of a rule: the fleet secret for a shared rule, if this host is in a
    /// fleet.
    pub(super) fn hash_key<'k>(&'k self, is_shared: bool, own: &'k HashKey) -> &'k HashKey {
        self.joined.get().filter(|_| is_shared).map_or(own, |joined| &joined.key)
    }

    pub(super) fn is_joined(&self) -> bool {
        self.joined.get().is_some()
    }

    /// Registers the fleet budgets and concurrency limits of rules before they are installed.
    pub(super) fn register_limits(&self, domains: &[Arc<Domain>], own: &HashKey) {
        let Some(joined) = self.joined.get() else { return };
        let mut budgets: HashMap<u64, FleetBudget> = HashMap::new();
        let mut limits = HashMap::new();
        let mut rules = HashSet::new();
        for (domain, rule) in
            domains.iter().flat_map(|domain| domain.rules().iter().map(move |rule| (domain, rule)))
        {
            if !is_shared(rule) {
                continue;
            }
            let name: Arc<str> = format!("{}/{}", domain.name(), rule.name).into();
            let rule_number = joined.number(&name, "");
            rules.insert(rule_number);
            let numbers: Vec<String> = rule.limit.allowances.iter().map(describe_numbers).collect();
            let fingerprint = joined.number(&name, &format!("{numbers:?} {:?}", rule.overrides));
            for ((entry, allowance), numbers) in rule.limit.allowances.iter().enumerate().zip(&numbers) {
                match allowance.as_ref().map(|it| &it.quota) {
                    Some(Quota::FleetBudget(quota)) => {
                        // By its numbers, not by its entry: an entry may move when another is added or removed.
                        let number = joined.number(&name, numbers);
                        quota.join(&joined.status, number);
                        let windows = quota.window().map_or(Salt::NONE, |it| joined.key.salt(&it.describe()));
                        let budget = FleetBudget {
                            rule: Arc::clone(&name),
                            rule_number,
                            fingerprint,
                            quota: (**quota).clone(),
                            is_in_force: true,
                            states: share_tag_and_salt(quota, own),
                            windows,
                        };
                        budgets.insert(number, budget);
                    }
                    Some(Quota::Concurrency(quota)) if quota.is_fleet() => {
                        let number = joined.number(&name, &entry.to_string());
                        quota.join(&joined.status, number);
                        let (rule, quota) = (Arc::clone(&name), quota.clone());
                        limits.insert(number, FleetConcurrencyLimit { rule, rule_number, quota });
                    }
                    _ => {}
                }
            }
        }
        let before = Arc::clone(&self.budgets.lock());
        for (number, budget) in
            before.iter().filter(|(_, it)| it.is_in_force && rules.contains(&it.rule_number))
        {
            budgets.entry(*number).or_insert_with(|| FleetBudget { is_in_force: false, ..budget.clone() });
        }
        *self.budgets.lock() = Arc::new(budgets);
        *self.concurrency_limits.lock() = Arc::new(limits);
    }
}

impl JoinedFleet {
    /// The number of a rule or of one of its budgets: equal on all hosts with the same secret.
    fn number(&self, rule: &str, budget: &str) -> u64 {
        self.key.for_rule(rule, budget, "budget").digest_bytes(b"").hash()
    }
}

/// Describes the numbers of an entry: equal for equal ones of a rule. Empty for one without limit.
fn describe_numbers(allowance: &Option<Allowance>) -> String {
    match allowance.as_ref().map(|it| &it.quota) {
        Some(Quota::FleetBudget(quota)) => quota.describe_numbers(),
        _ => String::new(),
    }
}

/// Keys of one shard that wait for a sync.
#[derive(Debug, Default)]
pub(super) struct SyncQueue(pub(super) Vec<SharedKey>);

impl SyncQueue {
    /// Whether another key fits. Otherwise the key is added at its next request.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < SYNC_QUEUE_MAX
    }

    /// Adds a key and marks its shard; not without the number of a budget, as outside of a fleet.
    pub(super) fn push(&mut self, key: Digest, budget: Option<u64>, due: &DueShards) {
        if let Some(budget) = budget {
            self.0.push(SharedKey::new(key, budget));
            due.mark(&key);
        }
    }
}

impl Engine {
    /// Joins the fleet; applies from the next installed rules. Keys then have equal digests on all hosts with
    /// the same secret. Call it once, before rules are installed.
    pub fn join_fleet(&self, secret: HashKey) -> Arc<FleetStatus> {
        let joined = || JoinedFleet { key: secret, status: Arc::default() };
        Arc::clone(&self.fleet.joined.get_or_init(joined).status)
    }

    /// The fleet budgets of the rules in force, and those of the rules before that they no longer have, by number.
    pub fn fleet_budgets(&self) -> Arc<HashMap<u64, FleetBudget>> {
        Arc::clone(&self.fleet.budgets.lock())
    }

    /// Takes the keys that requested a sync since the last call.
    pub fn take_due_share_keys(&self, calls: &mut Vec<SharedKey>) {
        for shard in self.shards.shares_due.take() {
            calls.append(&mut self.shards.lock(shard).share_sync_queue.0);
        }
    }

    /// Whether any key of a share or of permits requested a sync and was not taken yet.
    pub fn has_due_keys(&self) -> bool {
        self.shards.has_due_keys()
    }

    /// Reports the state of a key and returns up to `back` borrowed tokens with it. Returns the report and
    /// the number of all returned tokens; `None` if the key has no state.
    #[must_use]
    pub fn report_share(
        &self,
        key: &SharedKey,
        budget: &FleetBudget,
        back: u32,
        now: Now,
    ) -> Option<(ShareReport, u32)> {
        let report = |share: &mut share::ShareState| share.report(&budget.quota, now.at, back);
        let (mut reported, back) = self.change_existing_share(key, budget, now, report)?;
        if reported.refund > 0 && budget.quota.window().is_some() {
            reported.paid_us = self.fleet.refund_times.take_refund_time(key);
        }
        Some((reported, back))
    }

    /// Reads the state of a key, after it has noted the outages until now: what was admitted meanwhile is a debt.
    pub fn peek_share(&self, key: &SharedKey, budget: &FleetBudget, now: Now) -> Option<ShareReport> {
        let share = self.read_share(key, budget, now)?;
        if share.has_noted_outages(&budget.quota) {
            return Some(share.peek_report(now.at));
        }
        self.change_existing_share(key, budget, now, |share| {
            if let Some(fleet_status) = budget.quota.fleet_status() {
                share.note_outages(&budget.quota, fleet_status, now.at);
            }
            share.peek_report(now.at)
        })
    }

    fn read_share(&self, key: &SharedKey, budget: &FleetBudget, now: Now) -> Option<share::ShareState> {
        let shard = self.shards.lock_for(&key.digest);
        Some(shard.shares.find(&budget.state(key))?.unfold(&budget.quota, now.at))
    }

    /// Whether only Redis knows the level of a key of a shared budget: it has not reported it for as long as other hosts
    /// hold tokens.
    pub fn is_unreported(&self, key: Digest, quota: &Quota, now: Now) -> bool {
        let Quota::FleetBudget(quota) = quota else { return false };
        let (Some(number), budgets) = (quota.budget(), self.fleet_budgets()) else { return false };
        let Some(budget) = budgets.get(&number) else { return false };
        let share = self.read_share(&SharedKey::new(key, number), budget, now);
        let seen = share.and_then(|share| share.last_level());
        seen.is_none_or(|seen| now.at.since(seen.received_at) >= share::HOLD)
    }

    /// This host's share of a key of a rule, unchanged. `None`: the rule has no fleet budget.
    ///
    /// # Errors
    /// The attributes or the digest name no key of the rule.
    pub fn find_share<'k>(
        &self,
        rule: &RuleName,
        key: impl Into<NamedKey<'k>>,
        now: Now,
    ) -> Result<Option<HostShare>, KeyError> {
        let digest = self.find_key(rule, key.into())?.tagged(Tag::NONE);
        let rule = rule.to_string();
        let budgets = self.fleet_budgets();
        let mut of_rule: Vec<_> =
            budgets.iter().filter(|(_, it)| it.is_in_force && *it.rule == *rule).collect();
        // For a key without state its budget among those of the rule is unknown: show the largest.
        of_rule.sort_by_key(|(_, budget)| std::cmp::Reverse(budget.quota.bucket().burst()));
        let here = of_rule.into_iter().map(|(number, budget)| {
            let key = SharedKey { digest, budget: *number };
            let state = self.read_share(&key, budget, now);
            HostShare {
                name: budget.cell(&key),
                limit: budget.quota.bucket().burst(),
                report: state.map(|state| state.peek_report(now.at)),
                is_tracked: state.is_some_and(|state| state.is_tracked()),
                redis_level: state.and_then(|state| state.last_level()),
            }
        });
        let here: Vec<HostShare> = here.collect();
        Ok(here.iter().find(|here| here.report.is_some()).or(here.first()).copied())
    }

    /// Applies a reply to a key. Returns the tokens, borrowed or just granted, that expired and were not
    /// reported yet.
    pub fn apply_share_reply(
        &self,
        key: &SharedKey,
        budget: &FleetBudget,
        settled: &ShareReply,
        now: Now,
    ) -> u32 {
        let apply = |share: &mut share::ShareState| share.apply_reply(&budget.quota, settled, now.at);
        let expired = self.change_existing_share(key, budget, now, apply);
        // Without a state nothing can spend the granted tokens.
        expired.unwrap_or(settled.granted)
    }

    fn change_existing_share<T>(
        &self,
        key: &SharedKey,
        budget: &FleetBudget,
        now: Now,
        change: impl FnOnce(&mut share::ShareState) -> T,
    ) -> Option<T> {
        let (mut shard, digest, memory) =
            (self.shards.lock_for(&key.digest), budget.state(key), self.shards.memory());
        let mut found = shard.shares.entry(&digest)?;
        let (changed, grown) = found.change(|state| state.update(&budget.quota, now.at, change), memory);
        self.shards.count_evictions(shard.shares.evict_bytes(memory, grown, now));
        self.queue_share_sync(&mut shard, key, &digest);
        Some(changed)
    }

    fn queue_share_sync(&self, shard: &mut Shard, key: &SharedKey, digest: &Digest) {
        if shard.share_sync_queue.has_room()
            && shard.shares.find_mut(digest).is_some_and(share::CompactShare::take_sync_due)
        {
            shard.share_sync_queue.push(key.digest, Some(key.budget), &self.shards.shares_due);
        }
    }

    /// Changes the state of a key, creating it if necessary. `None`: its rule was removed.
    pub(super) fn change_share<T>(
        &self,
        key: &SharedKey,
        now: Now,
        change: impl FnOnce(&mut share::ShareState, &share::ShareQuota) -> T,
    ) -> Option<T> {
        let budgets = self.fleet_budgets();
        let budget = budgets.get(&key.budget)?;
        let mut shard = self.shards.lock_for(&key.digest);
        let digest = budget.state(key);
        let quota = &budget.quota;
        let fresh = || share::CompactShare::fresh(quota, now.at);
        let change =
            |state: &mut share::CompactShare| state.update(quota, now.at, |share| change(share, quota));
        let (changed, evicted) = shard.shares.change(digest, self.shards.memory(), now, fresh, change);
        self.shards.count_evictions(evicted);
        self.queue_share_sync(&mut shard, key, &digest);
        Some(changed)
    }

    /// Stops tracking a key until it requests a sync again. Returns whether that is possible: no tokens are
    /// borrowed or owed.
    pub fn remove_share(&self, key: &SharedKey, budget: &FleetBudget, now: Now) -> bool {
        self.change_existing_share(key, budget, now, |share| share.stop_tracking(now.at)).unwrap_or(true)
    }
}

/// Queued keys per shard: some thousand come in a hundredth of a second.
const SYNC_QUEUE_MAX: usize = 4_096;

/// By key and budget, the earliest payment time by the clock of Redis, in microseconds.
#[derive(Debug, Default)]
pub(super) struct RefundTimes(Mutex<HashMap<SharedKey, u64>>);

impl RefundTimes {
    /// Records the payment time of returned tokens; zero for other budgets than windows.
    pub(super) fn record_refund(&self, key: &SharedKey, paid_us: u64) {
        if paid_us == 0 {
            return;
        }
        let mut returned = self.0.lock();
        if returned.len() >= REFUND_TIMES_MAX && !returned.contains_key(key) {
            return;
        }
        let paid = returned.entry(*key).or_insert(paid_us);
        *paid = paid_us.min(*paid);
    }

    /// Takes the earliest payment time of the tokens returned now.
    pub(super) fn take_refund_time(&self, key: &SharedKey) -> Option<u64> {
        self.0.lock().remove(key)
    }
}

/// More keys than are synchronized in a second. Tokens of further keys stay counted as used.
const REFUND_TIMES_MAX: usize = 1 << 14;
