//! Charges judged requests and marks refused keys.

use super::{CheckContext, CheckStage, LimitedBy, OverQuota, StageCheck};
use crate::clock::{Micros, Now};
use crate::engine::algorithm::{AlgorithmTable, each_algorithm};
use crate::engine::decision::RuleCheck;
use crate::engine::digest::Digest;
use crate::engine::shards::Shard;
use crate::limit::leaky_bucket::QueueWait;
use crate::limit::share::CompactShare;
use crate::limit::{Outcome, Quota, QuotaLevel};
use crate::rules::OverTreatment;

impl StageCheck {
    /// Returns whether it counts a cost that was cut to `u32::MAX`.
    pub(in crate::engine) fn is_oversized(&self) -> bool {
        self.cost == u32::MAX && !self.is_concurrency
    }

    pub(in crate::engine) fn check(&self, stage: CheckStage) -> RuleCheck {
        let passes = self.passes() || !stage.includes_check(self);
        RuleCheck { rule: self.rule, key: self.key.hash(), cost: self.cost, passes }
    }

    /// Charges a request that starts after `wait`, or one that is refused and counts all the same.
    pub(in crate::engine) fn charge(
        &mut self,
        wait: QueueWait,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        let Some(limited_by) = self.find_limit(context).filter(|_| self.cost > 0) else { return };
        if !self.passes() && matches!(limited_by.allowance.quota, Quota::FleetBudget(_)) {
            // A share divides admitted units among hosts: a charged refusal would take others' units.
            return;
        }
        self.charged = true;
        each_algorithm!(
            &limited_by.allowance.quota,
            quota => self.charge_quota(quota, wait, &limited_by, context, shard),
            quota => self.charge_lease(quota, context, shard)
        );
        if !self.passes() {
            // The charge may make the wait longer.
            self.look_up(context, shard);
            self.judge(context, shard);
        }
    }

    /// Extends the wait of a refused request if this rule, which charged it or has a soft part that ends, refuses after `wait`.
    pub(in crate::engine) fn extend_wait(
        &mut self,
        wait: Micros,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        let has_soft_end = || self.find_limit(context).is_some_and(|of| of.limit.soft_for.is_some());
        if !self.enforced || !self.charged && !has_soft_end() {
            return;
        }
        let now = Now { at: context.now.at.after(wait.into()), ..context.now };
        let mut then = *self;
        then.look_up(context, shard);
        then.judge(&CheckContext { now, ..*context }, shard);
        if let Outcome::Later(more) = then.outcome {
            self.extended_wait = Micros(wait.0.saturating_add(more.0));
        }
    }

    fn charge_quota<A: AlgorithmTable>(
        &mut self,
        quota: &A,
        wait: QueueWait,
        limited_by: &LimitedBy<'_>,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        let CheckContext { now, .. } = *context;
        match (self.beyond, &limited_by.allowance.over) {
            (Some(OverQuota::Elastic), OverTreatment::Elastic(second)) => {
                let Some(second) = A::from_quota(second) else { unreachable!("it has passed by this quota") };
                self.change(self.elastic_digest(), second, context, shard, |state| {
                    second.charge(state, now, self.cost, wait);
                });
            }
            (beyond, OverTreatment::Soft(larger)) => {
                let charged = A::from_quota(larger).filter(|_| beyond.is_some()).unwrap_or(quota);
                let had_some = self.soft_end(quota, context, shard).is_none();
                let level = self.change(self.digest, quota, context, shard, |state| {
                    charged.charge(state, now, self.cost, wait);
                });
                self.level = Some(level);
                self.record_soft_use(quota, had_some, context, shard);
            }
            _ => {
                let level = self.change(self.digest, quota, context, shard, |state| {
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
        context: &CheckContext<'_>,
        shard: &mut Shard,
        change: impl FnOnce(&mut A::State),
    ) -> QuotaLevel {
        let memory = context.shards.memory();
        let index = self.table_index.filter(|_| digest == self.digest);
        let fresh = || quota.new_state(context.now);
        let may_call = A::IS_SHARED && shard.share_sync_queue.has_room();
        let mut calls = false;
        let change = |state: &mut A::State| {
            change(state);
            calls = may_call && A::take_sync_request(state);
            let level = quota.level(state, context.now);
            (level, A::tag(digest.tag(), &level))
        };
        let (level, evicted) =
            A::table_mut(shard).change_at(index, digest, memory, context.now, fresh, change);
        context.shards.count_evictions(evicted);
        if A::IS_SHARED && calls {
            shard.share_sync_queue.push(self.key, quota.budget(), &context.shards.shares_due);
        }
        level
    }

    /// Marks the key as refused: eviction prefers other keys, and other hosts learn of the demand.
    pub(in crate::engine) fn mark_refusing(&self, context: &CheckContext<'_>, shard: &mut Shard) {
        let Some(limited_by) = self.find_limit(context) else { return };
        if let Quota::FleetBudget(quota) = &limited_by.allowance.quota {
            let note = |state: &mut CompactShare| quota.record_refusal(state, context.now, self.cost);
            self.change(self.digest, &**quota, context, shard, note);
            return;
        }
        // A bucket's time until full already shows it, and leases are never evicted.
        if matches!(
            limited_by.allowance.quota,
            Quota::TokenBucket(_) | Quota::LeakyBucket(_) | Quota::Concurrency(_)
        ) {
            return;
        }
        each_algorithm!(
            &limited_by.allowance.quota,
            quota => self.mark_state_refusing(quota, shard),
            _quota => ()
        );
    }

    fn mark_state_refusing<A: AlgorithmTable>(&self, _: &A, shard: &mut Shard) {
        if let Some(mut found) = A::table_mut(shard).entry(&self.digest) {
            found.set_tag(A::tag_refusing(found.tag()));
        }
    }
}

impl StageCheck {
    /// Charges a request after the fact, or refunds it with a negative amount.
    pub(in crate::engine) fn charge_amount(
        &mut self,
        amount: i64,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        let Some(limited_by) = self.find_limit(context) else { return };
        if amount == 0 || matches!(limited_by.allowance.quota, Quota::LeakyBucket(_)) {
            return;
        }
        self.adopt(&limited_by, context, shard);
        each_algorithm!(
            &limited_by.allowance.quota,
            quota => self.charge_amount_to_quota(quota, amount, &limited_by, context, shard),
            // Leases alone count permits.
            _ => {}
        );
    }

    fn charge_amount_to_quota<A: AlgorithmTable>(
        &self,
        quota: &A,
        amount: i64,
        limited_by: &LimitedBy<'_>,
        context: &CheckContext<'_>,
        shard: &mut Shard,
    ) {
        let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
        if amount < 0 && !A::IS_SHARED && A::table(shard).find(&self.digest).is_none() {
            // Without a state the key has its full quota, but in Redis.
            return;
        }
        let had_some = self.soft_end(quota, context, shard).is_none();
        self.change(self.digest, quota, context, shard, |state| {
            if amount < 0 {
                quota.refund(state, context.now, units, context.charged_at);
            } else {
                quota.charge_debt(state, context.now, units, limited_by.allowance.max_debt);
            }
        });
        if matches!(limited_by.allowance.over, OverTreatment::Soft(_))
            && shard.soft_states.find(&self.digest).is_some()
        {
            let has_some = self.soft_end(quota, context, shard).is_none();
            self.record_soft_use(quota, had_some || has_some, context, shard);
        }
    }
}
