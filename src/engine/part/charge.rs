//! Charges judged requests and marks refused keys.

use super::{Beyond, Case, CheckStage, LimitedBy, StagePart};
use crate::engine::algorithm::{AlgorithmTable, each_algorithm, shared};
use crate::engine::decision::RuleCheck;
use crate::engine::digest::Digest;
use crate::engine::shards::Shard;
use crate::limit::leaky_bucket::QueueWait;
use crate::limit::share::Folded;
use crate::limit::{Outcome, Quota, QuotaLevel};
use crate::rules::Over;

impl StagePart {
    /// Returns whether it counts a cost that was cut to `u32::MAX`.
    pub(in crate::engine) fn is_oversized(&self) -> bool {
        self.cost == u32::MAX && !self.is_concurrency
    }

    pub(in crate::engine) fn check(&self, stage: CheckStage) -> RuleCheck {
        let passes = self.passes() || !stage.asks(self);
        RuleCheck { rule: self.rule, key: self.key.hash(), cost: self.cost, passes }
    }

    /// Charges a request that starts after `wait`, or one that is refused and counts all the same.
    pub(in crate::engine) fn charge(
        &mut self,
        granted: bool,
        wait: QueueWait,
        case: &Case<'_>,
        shard: &mut Shard,
    ) {
        let Some(law) = self.law(case).filter(|_| self.cost > 0) else { return };
        if !self.passes() && matches!(law.allowance.quota, Quota::Share(_)) {
            // A share divides admitted units among hosts: a charged refusal would take others' units.
            return;
        }
        self.charged = true;
        each_algorithm!(&law.allowance.quota, quota => self.charge_by(quota, wait, &law, case, shard));
        if !self.passes() {
            // The charge may make the wait longer.
            self.look_up(case, shard);
            self.judge(case, shard);
        } else if !granted && self.enforced {
            let mut next = *self;
            next.look_up(case, shard);
            next.judge(case, shard);
            if let Outcome::Later(later) = next.outcome {
                self.later = later;
            }
        }
    }

    fn charge_by<A: AlgorithmTable>(
        &mut self,
        quota: &A,
        wait: QueueWait,
        law: &LimitedBy<'_>,
        case: &Case<'_>,
        shard: &mut Shard,
    ) {
        let Case { now, .. } = *case;
        match (self.beyond, &law.allowance.over) {
            (Some(Beyond::Elastic), Over::Elastic(second)) => {
                let Some(second) = A::of(second) else { unreachable!("it has passed by this quota") };
                self.change(self.elastic(), second, case, shard, |state| {
                    second.charge(state, now, self.cost, wait);
                });
            }
            (beyond, Over::Soft(larger)) => {
                let charged = A::of(larger).filter(|_| beyond.is_some()).unwrap_or(quota);
                let had_some = self.soft_ends(quota, case, shard).is_none();
                let level = self.change(self.digest, quota, case, shard, |state| {
                    charged.charge(state, now, self.cost, wait);
                });
                self.level = Some(level);
                self.keep_soft(quota, had_some, case, shard);
            }
            _ => {
                let level = self.change(self.digest, quota, case, shard, |state| {
                    quota.charge(state, now, self.cost, wait);
                });
                self.level = Some(level);
            }
        }
    }

    /// Changes a state and returns the key's level after it.
    pub(super) fn change<A: AlgorithmTable>(
        &self,
        digest: Digest,
        quota: &A,
        case: &Case<'_>,
        shard: &mut Shard,
        change: impl FnOnce(&mut A::State),
    ) -> QuotaLevel {
        let memory = case.shards.memory();
        let place = self.place.filter(|_| digest == self.digest);
        let fresh = || quota.fresh(case.now);
        let may_call = A::IS_SHARED && shard.calls.has_room();
        let mut calls = false;
        let change = |state: &mut A::State| {
            change(state);
            calls = may_call && A::calls(state);
            let level = quota.level(state, case.now);
            (level, A::tag(digest.tag(), &level))
        };
        let (level, evicted) = A::table_mut(shard).change_at(place, digest, memory, case.now, fresh, change);
        case.shards.count_evictions(evicted);
        if A::IS_SHARED && calls {
            shard.calls.push(self.key, quota.budget(), case.shards);
        }
        quota.charged((self.key, digest), level, case, shard)
    }

    /// Marks the key as refused: eviction prefers other keys, and other hosts learn of the demand.
    pub(in crate::engine) fn mark_refusing(&self, case: &Case<'_>, shard: &mut Shard) {
        let Some(law) = self.law(case) else { return };
        if let Quota::Share(quota) = &law.allowance.quota {
            let note = |state: &mut Folded| quota.note_refused(state, case.now, self.cost);
            self.change(self.digest, &**quota, case, shard, note);
            return;
        }
        if let Quota::Places(quota) = &law.allowance.quota {
            let could_ask = case.leases && self.enforced;
            return shared::note_refused(quota, (self.key, self.digest), could_ask, case, shard);
        }
        // A bucket's time until full already shows it.
        if matches!(law.allowance.quota, Quota::TokenBucket(_) | Quota::LeakyBucket(_)) {
            return;
        }
        each_algorithm!(&law.allowance.quota, quota => self.mark_by(quota, shard));
    }

    fn mark_by<A: AlgorithmTable>(&self, _: &A, shard: &mut Shard) {
        if let Some(mut found) = A::table_mut(shard).entry(&self.digest) {
            found.set_tag(A::tag_refusing(found.tag()));
        }
    }
}

impl StagePart {
    /// Charges a request after the fact, or refunds it with a negative amount.
    pub(in crate::engine) fn settle_up(&mut self, amount: i64, case: &Case<'_>, shard: &mut Shard) {
        let Some(law) = self.law(case) else { return };
        let is_pace_or_place =
            matches!(law.allowance.quota, Quota::LeakyBucket(_) | Quota::Concurrency(_) | Quota::Places(_));
        if amount == 0 || is_pace_or_place {
            return;
        }
        self.adopt(&law, case.now, shard);
        each_algorithm!(&law.allowance.quota, quota => self.settle_up_by(quota, amount, &law, case, shard));
    }

    fn settle_up_by<A: AlgorithmTable>(
        &self,
        quota: &A,
        amount: i64,
        law: &LimitedBy<'_>,
        case: &Case<'_>,
        shard: &mut Shard,
    ) {
        let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
        if amount < 0 && A::table(shard).find(&self.digest).is_none() {
            // Without a state the key has its full quota.
            return;
        }
        let had_some = self.soft_ends(quota, case, shard).is_none();
        self.change(self.digest, quota, case, shard, |state| {
            if amount < 0 {
                quota.give_back(state, case.now, units);
            } else {
                quota.owe(state, case.now, units, law.allowance.max_debt);
            }
        });
        if matches!(law.allowance.over, Over::Soft(_)) && shard.softs.find(&self.digest).is_some() {
            let has_some = self.soft_ends(quota, case, shard).is_none();
            self.keep_soft(quota, had_some || has_some, case, shard);
        }
    }
}
