//! The check of one rule for one request. No state changes until all checks of the request are evaluated.

mod charge;
mod permits;
mod soft;

use super::algorithm::{AlgorithmTable, each_algorithm};
use super::digest::Digest;
use super::fleet::SharedKey;
use super::leases::LeaseCharge;
use super::remote_check::Shortfall;
use super::rule_set::{CompiledRule, QuotaAge};
use super::shards::{Shard, Shards, shard_of};
use super::slots::Slot;
use super::tag::BlockedUntil;
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::leaky_bucket::QueueWait;
use crate::limit::{Outcome, Quota, QuotaLevel, share};
use crate::rules::{Allowance, Limit, OverTreatment, Rule};
use std::time::Duration;

pub(super) use soft::SoftState;

#[derive(Clone, Copy, Debug)]
pub(super) struct StageCheck {
    /// The index of the rule in its domain.
    pub(super) rule: u32,
    pub(super) slot: Slot,
    /// Whether refusals are enforced; otherwise they are only noted.
    pub(super) enforced: bool,
    pub(super) outcome: Outcome,
    /// The queueing delay of a leaky bucket, if granted.
    pub(super) wait: QueueWait,
    /// How long this rule refuses a refused request again, as it charged it or its soft part will have ended.
    pub(super) extended_wait: Micros,
    pub(super) beyond: Option<OverQuota>,
    /// The key's level, once settled; `None`: unlimited.
    pub(super) level: Option<QuotaLevel>,
    /// The digest of the key, and that of its state.
    pub(super) key: Digest,
    pub(super) digest: Digest,
    /// The state's index in its table, if found.
    table_index: Option<usize>,
    pub(super) allowance: u32,
    pub(super) cost: u32,
    /// Whether the rule limits concurrency instead of a rate.
    pub(super) is_concurrency: bool,
    pub(super) charged: bool,
    /// The units that a remote check would have to bring.
    pub(super) missing_units: u32,
    pub(super) blocked_until: Timestamp,
    /// Whether an operator or the rule itself blocks the key.
    pub(super) is_blocked: bool,
}

/// The evaluation stage whose rules decide a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckStage {
    Rates,
    Concurrency,
}

impl CheckStage {
    pub(super) fn includes_check(self, check: &StageCheck) -> bool {
        self == CheckStage::Concurrency || !check.is_concurrency
    }
}

/// How a request passes above its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverQuota {
    /// In the soft part of its allowance.
    Soft,
    /// On the spare capacity of the pool.
    Elastic,
}

/// The context that all checks of one request share.
#[derive(Clone, Copy)]
pub(super) struct CheckContext<'a> {
    pub(super) shards: &'a Shards,
    pub(super) rules: &'a [Rule],
    pub(super) compiled: &'a [CompiledRule],
    pub(super) now: Now,
    pub(super) wait_max: Option<Micros>,
    /// Whether elastic quotas have room.
    pub(super) has_elastic_room: bool,
    pub(super) leases: bool,
    /// When the cost of a refund was charged, if that is known.
    pub(super) charged_at: Option<Timestamp>,
    /// Whether the true cost exceeds `u32::MAX`: every rule that counts the cut cost refuses it for good.
    pub(super) oversized: bool,
}

#[derive(Clone, Copy)]
struct LimitedBy<'a> {
    limit: &'a Limit,
    allowance: &'a Allowance,
}

impl StageCheck {
    /// `blocked_in_fleet`: the end of a fleet-wide block of the key.
    #[inline]
    pub(super) fn new(
        rule: u32,
        compiled_rule: &CompiledRule,
        key: Digest,
        blocked_in_fleet: Timestamp,
        allowance: u32,
        cost: u32,
    ) -> StageCheck {
        let (tag, salt) = compiled_rule.tag_and_salt(allowance);
        StageCheck {
            rule,
            slot: compiled_rule.slot,
            enforced: compiled_rule.enforced(),
            outcome: Outcome::Pass,
            wait: QueueWait::NONE,
            extended_wait: Micros::ZERO,
            beyond: None,
            level: None,
            key,
            digest: key.with_tag_and_salt(tag, salt),
            table_index: None,
            allowance,
            cost,
            is_concurrency: compiled_rule.is_concurrency,
            charged: false,
            missing_units: 0,
            blocked_until: compiled_rule.blocked_until(&key).max(blocked_in_fleet),
            is_blocked: false,
        }
    }

    #[inline]
    pub(super) fn shard(&self) -> usize {
        shard_of(&self.digest)
    }

    #[inline]
    pub(super) fn passes(&self) -> bool {
        self.outcome.is_allowed()
    }

    #[inline]
    pub(super) fn refuses(&self) -> bool {
        self.enforced && !self.passes()
    }

    /// Returns whether refused requests are charged too.
    pub(super) fn counts_refused(&self, context: &CheckContext<'_>) -> bool {
        self.find_limit(context)
            .is_some_and(|limited_by| limited_by.limit.refused == crate::rules::RefusedCost::Counted)
    }

    fn find_limit<'a>(&self, context: &CheckContext<'a>) -> Option<LimitedBy<'a>> {
        let Some(rule) = context.rules.get(self.rule as usize) else { unreachable!("a check is of a rule") };
        let limit = &rule.limit;
        assert!(
            (self.allowance as usize) < limit.allowances.len(),
            "overrides name allowances of their rule"
        );
        Some(LimitedBy { limit, allowance: limit.allowance(self.allowance)? })
    }

    /// Finds the state. All checks look up before any is judged, so that their cache misses overlap.
    pub(super) fn look_up(&mut self, context: &CheckContext<'_>, shard: &Shard) {
        let Some(limited_by) = self.find_limit(context) else { return };
        self.table_index = each_algorithm!(&limited_by.allowance.quota, quota => find_table_index(quota, shard, &self.digest), _ => None);
    }

    /// Judges the request against the state found by `look_up`. A request of cost 0 passes.
    pub(super) fn judge(&mut self, context: &CheckContext<'_>, shard: &mut Shard) {
        if context.oversized && self.is_oversized() {
            self.outcome = Outcome::Never;
            return;
        }
        let Some(limited_by) = self.find_limit(context) else { return self.judge_unlimited(context) };
        if self.cost == 0 || matches!(limited_by.allowance.over, OverTreatment::Elastic(_)) {
            self.adopt(&limited_by, context, shard);
        }
        if self.cost == 0 {
            return;
        }
        let own = limited_by.limit.block.map_or(Micros::ZERO, |_| self.block_remaining(context.now, shard));
        let left = own.max(self.operator_block_remaining(context.now));
        self.is_blocked = left > Micros::ZERO;
        let blocked;
        let mut then = context;
        if left > Micros::ZERO {
            // A blocked key is judged as of the end of its block: a request that fits now may not fit then.
            let now = Now { at: context.now.at.after(left.into()), ..context.now };
            blocked = CheckContext { now, ..*context };
            then = &blocked;
        }
        let judge = |check: &mut StageCheck, shard: &Shard| {
            each_algorithm!(
                &limited_by.allowance.quota,
                quota => check.judge_by(quota, &limited_by, then, shard),
                quota => Some(check.judge_lease(quota, then.now, shard))
            )
        };
        let outcome = match judge(self, shard) {
            Some(outcome) => outcome,
            None => {
                self.adopt(&limited_by, context, shard);
                let again = judge(self, shard);
                again.unwrap_or_else(|| unreachable!("adopted, it is under the tag that is looked for"))
            }
        };
        self.outcome = outcome;
        if left > Micros::ZERO {
            self.beyond = None;
            self.outcome = match outcome {
                Outcome::Pass | Outcome::Queued(_) => Outcome::Later(left),
                Outcome::Later(wait) => Outcome::Later(Micros(left.0.saturating_add(wait.0))),
                Outcome::Never => Outcome::Never,
            };
            // The cost refuses the request for good, also after the block.
            self.is_blocked = outcome != Outcome::Never;
        }
    }

    /// Judges a key that has a state of this allowance, a lease, or a block by an operator. Returns whether it has one.
    pub(super) fn inspect(&mut self, context: &CheckContext<'_>, shard: &mut Shard) -> bool {
        self.look_up(context, shard);
        let has_state = self.find_limit(context).is_some_and(|limited_by| {
            each_algorithm!(
                &limited_by.allowance.quota,
                quota => self.has_own_state(quota, shard),
                _ => shard.in_use(&self.digest) > 0
            )
        });
        if has_state {
            self.judge(context, shard);
            self.read_level(context, shard);
            return true;
        }
        let left = self.operator_block_remaining(context.now);
        self.is_blocked = left > Micros::ZERO;
        if self.is_blocked {
            self.outcome = Outcome::Later(left);
        }
        self.is_blocked
    }

    /// Whether the state is of this quota: that of another allowance is not converted.
    fn has_own_state<A: AlgorithmTable>(&self, _: &A, shard: &Shard) -> bool {
        let state = self.table_index.and_then(|place| A::table(shard).at(place));
        state.is_some_and(|(tag, _)| !A::CONVERTS_STATES || tag == self.digest.tag())
    }

    /// Converts a bucket last changed under other quotas: its time until full stays, cut to what the capacity was when its
    /// own quota took force, unless that was the case already.
    fn adopt(&self, limited_by: &LimitedBy<'_>, context: &CheckContext<'_>, shard: &mut Shard) {
        let compiled_rule = context.compiled.get(self.rule as usize);
        let compiled_rule = compiled_rule.unwrap_or_else(|| unreachable!("a check is of a rule"));
        let now = context.now.at;
        let mut adopt = |digest: Digest, quota: &Quota, age: QuotaAge| {
            let bucket = match quota {
                Quota::TokenBucket(bucket) => bucket,
                Quota::LeakyBucket(leaky) => leaky.bucket(),
                _ => return,
            };
            let Some(mut found) = shard.buckets.entry(&digest) else { return };
            let tag = found.tag();
            if tag != digest.tag() {
                let state = found.state_mut();
                let rescaled = state.rescale(tag.scale(), bucket.scale(), now);
                let is_own = digest.tag().generations_since(tag) <= age.generations;
                *state = if is_own { rescaled } else { rescaled.clamp_to(bucket, age.since.min(now)) };
                found.set_tag(digest.tag());
            }
        };
        adopt(self.digest, &limited_by.allowance.quota, compiled_rule.quota_age(Some(self.allowance)));
        if let OverTreatment::Elastic(second) = &limited_by.allowance.over {
            adopt(self.elastic_digest(), second, compiled_rule.quota_age(None));
        }
    }

    /// Judges against the current state; `None`: it has another quota's tag and must be adopted first.
    fn judge_by<A: AlgorithmTable>(
        &mut self,
        quota: &A,
        limited_by: &LimitedBy<'_>,
        context: &CheckContext<'_>,
        shard: &Shard,
    ) -> Option<Outcome> {
        let fresh;
        let state = match self.table_index.and_then(|place| A::table(shard).at(place)) {
            Some((tag, _)) if A::CONVERTS_STATES && tag != self.digest.tag() => return None,
            Some((_, state)) => state,
            None => {
                fresh = quota.new_state(context.now);
                &fresh
            }
        };
        let (mut outcome, wait) = quota.judge(state, context.now, self.cost, context.wait_max);
        self.wait = wait;
        // A rule in shadow delays no request: it goes by the last reply of Redis.
        if A::IS_SHARED && !self.enforced && !outcome.is_allowed() {
            let passes = quota.passes_in_shadow(state, context.now, self.cost);
            outcome = if passes { Outcome::Pass } else { outcome };
        }
        Some(self.beyond_quota(quota, state, outcome, limited_by, context, shard))
    }

    /// Judges a request that the quota refuses by the soft or elastic part of its allowance.
    fn beyond_quota<A: AlgorithmTable>(
        &mut self,
        quota: &A,
        state: &A::State,
        outcome: Outcome,
        limited_by: &LimitedBy<'_>,
        context: &CheckContext<'_>,
        shard: &Shard,
    ) -> Outcome {
        match (&limited_by.allowance.over, outcome) {
            (_, Outcome::Pass | Outcome::Queued(_))
            | (OverTreatment::Refuse, _)
            | (OverTreatment::Elastic(_), Outcome::Never) => outcome,
            (OverTreatment::Soft(larger), _) => {
                let Some(larger) = A::from_quota(larger) else { return outcome };
                let (lenient, _) = larger.judge(state, context.now, self.cost, context.wait_max);
                let one = soft::wait_for_one(quota, state, context.now);
                self.judge_soft(outcome, lenient, one, limited_by, context, shard)
            }
            (OverTreatment::Elastic(second), Outcome::Later(wait)) => {
                let Some(second) = A::from_quota(second).filter(|_| context.has_elastic_room) else {
                    return outcome;
                };
                let fresh;
                let state = match A::table(shard).find(&self.elastic_digest()) {
                    Some(state) => state,
                    None => {
                        fresh = second.new_state(context.now);
                        &fresh
                    }
                };
                match second.judge(state, context.now, self.cost, context.wait_max).0 {
                    Outcome::Pass | Outcome::Queued(_) => {
                        self.beyond = Some(OverQuota::Elastic);
                        Outcome::Pass
                    }
                    Outcome::Later(second) => Outcome::Later(wait.min(second)),
                    Outcome::Never => outcome,
                }
            }
        }
    }

    /// Returns the units that a remote check would have to bring, where only this host's share refuses; 0: a
    /// remote check would not help. With `by_what_is_known` (peeks), only facts already known here count.
    pub(super) fn missing_fleet_units(
        &self,
        by_what_is_known: bool,
        context: &CheckContext<'_>,
        shard: &Shard,
    ) -> u32 {
        let Some(limited_by) = self.find_limit(context) else { return 0 };
        let is_blocked = self.operator_block_remaining(context.now) > Micros::ZERO
            || limited_by.limit.block.is_some() && self.block_remaining(context.now, shard) > Micros::ZERO;
        if is_blocked || limited_by.allowance.over != OverTreatment::Refuse {
            return 0;
        }
        let quota = match &limited_by.allowance.quota {
            Quota::FleetBudget(quota) => quota,
            Quota::Concurrency(quota) => {
                return u32::from(self.lacks_permit(quota, by_what_is_known, context.now, shard));
            }
            _ => return 0,
        };
        let now = context.now.at;
        let state = shard.shares.find(&self.digest);
        let state =
            state.map_or_else(|| share::ShareState::fresh(quota, now), |state| state.unfold(quota, now));
        if by_what_is_known && !state.may_pass_elsewhere(quota, now, self.cost) {
            return 0;
        }
        state.missing_tokens(quota, now, self.cost).unwrap_or(0)
    }

    /// Returns the need of a remote check and the longest time to wait for it.
    pub(super) fn find_shortfall(&self, context: &CheckContext<'_>) -> Option<(Shortfall, Duration)> {
        let limited_by = self.find_limit(context).filter(|_| self.missing_units > 0)?;
        let (budget, is_place, patience) = match &limited_by.allowance.quota {
            Quota::FleetBudget(quota) => (quota.budget()?, false, quota.patience()),
            Quota::Concurrency(quota) => (quota.budget()?, true, quota.patience()),
            _ => return None,
        };
        let need = Shortfall {
            key: SharedKey::new(self.key, budget),
            missing_units: self.missing_units,
            cost: self.cost,
            is_permit: is_place,
        };
        Some((need, patience))
    }

    /// Reads the key's level, unless charging has set it.
    pub(super) fn read_level(&mut self, context: &CheckContext<'_>, shard: &Shard) {
        if self.level.is_some() {
            return;
        }
        let Some(limited_by) = self.find_limit(context) else { return };
        self.level = Some(each_algorithm!(
            &limited_by.allowance.quota,
            quota => self.level_by(quota, context.now, shard),
            quota => self.lease_level(quota, context.now, shard)
        ));
    }

    fn level_by<A: AlgorithmTable>(&self, quota: &A, now: Now, shard: &Shard) -> QuotaLevel {
        let level = match A::table(shard).find(&self.digest) {
            Some(state) => quota.level(state, now),
            None => quota.level(&quota.new_state(now), now),
        };
        if A::IS_SHARED && !self.passes() { level.for_refusal(self.cost) } else { level }
    }

    /// The digest of the elastic quota's state.
    fn elastic_digest(&self) -> Digest {
        self.digest.tagged(self.digest.tag().elastic())
    }
}

fn find_table_index<A: AlgorithmTable>(_: &A, shard: &Shard, digest: &Digest) -> Option<usize> {
    A::table(shard).find_index(digest)
}

/// Blocks: a key that was refused once stays refused for a time.
impl StageCheck {
    /// Returns the remaining block of the key. An expired block has no effect until it is swept.
    fn block_remaining(&self, now: Now, shard: &Shard) -> Micros {
        let ends = shard.blocks.find(&self.digest).map_or(now.at, |BlockedUntil(ends)| *ends);
        Micros::from_nanos(ends.nanos_since(now.at))
    }

    pub(super) fn operator_block_remaining(&self, now: Now) -> Micros {
        Micros::from_nanos(self.blocked_until.nanos_since(now.at))
    }

    /// Without a limit only an operator's block refuses a key, which then has a level of 0.
    fn judge_unlimited(&mut self, context: &CheckContext<'_>) {
        let left = self.operator_block_remaining(context.now);
        if left > Micros::ZERO && self.cost > 0 {
            self.outcome = Outcome::Later(left);
            self.is_blocked = true;
            self.level = Some(QuotaLevel { limit: 0, window: Micros::ZERO, remaining: 0, reset: left });
        }
    }

    /// Starts the block of a limit that refuses with `Later`, and judges again to include it in the wait.
    pub(super) fn block_key(&mut self, context: &CheckContext<'_>, shard: &mut Shard) {
        let Some(lasts) = self.find_limit(context).and_then(|limited_by| limited_by.limit.block) else {
            return;
        };
        // An operator's block is no refusal by the limit.
        if !matches!(self.outcome, Outcome::Later(_)) || self.blocked_until > context.now.at {
            return;
        }
        if let Some(block) = shard.blocks.find_mut(&self.digest) {
            if block.0 > context.now.at {
                // Further requests do not extend the block.
                return;
            }
            *block = BlockedUntil(context.now.at.after(lasts));
        } else {
            let block = BlockedUntil(context.now.at.after(lasts));
            if !shard.blocks.insert_if_room(self.digest, block, context.shards.memory()) {
                // A block must not evict another key's: without room the limit itself still refuses.
                context.shards.count_evictions(1);
                return;
            }
        }
        self.look_up(context, shard);
        self.judge(context, shard);
    }

    pub(super) fn refund(&self, compiled_rule: &CompiledRule, now: Now) -> LeaseCharge {
        LeaseCharge {
            rule: compiled_rule.identity,
            digest: if self.beyond == Some(OverQuota::Elastic) { self.elastic_digest() } else { self.digest },
            salt: compiled_rule.tag_and_salt(self.allowance).1,
            allowance: self.allowance,
            cost: self.cost,
            is_elastic: self.beyond == Some(OverQuota::Elastic),
            at: Some(now.at),
        }
    }
}
