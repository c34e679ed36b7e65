//! The fast path of a request that several simple token buckets check and all admit. As on the general path, every bucket is
//! judged before the first one is charged, with all shards locked.

use super::Judgement;
use super::one_rule::simple_cost;
use crate::clock::Timestamp;
use crate::engine::admission::LockedShards;
use crate::engine::callers::{SeenRequest, is_sampled};
use crate::engine::counters::CheckResult;
use crate::engine::decision::{CheckedKeys, Decision, EngineAnswer, LimitView};
use crate::engine::digest::Digest;
use crate::engine::request::Request;
use crate::engine::rule_set::CompiledRule;
use crate::engine::shards::{Shard, shard_of};
use crate::engine::slots::Slot;
use crate::engine::tag::Tag;
use crate::engine::workspace::{ListedLimit, Workspace};
use crate::limit::token_bucket::{GcraState, TokenBucketQuota};
use crate::limit::{Outcome, Quota};
use crate::rules::Selection;
use crate::terms::Verdict;
use arrayvec::ArrayVec;
use std::ops::RangeInclusive;

/// The check of one bucket.
struct BucketCheck<'d> {
    number: u32,
    compiled_rule: &'d CompiledRule,
    quota: &'d TokenBucketQuota,
    digest: Digest,
    shard: usize,
    /// The state's index in its table, if found.
    index: Option<usize>,
    /// The state once the request is charged.
    charged: GcraState,
}

/// The binding rule of an admitted request with its counter slot, if a rule is enforced.
type Binding<'d> = Option<(Slot, LimitView<'d>)>;

impl<'d> Judgement<'d> {
    /// Judges by any number of rules: on the fast path if all are simple token buckets that admit the request.
    #[inline]
    pub(in crate::engine) fn decide_by_several_rules<'w: 'd>(
        &self,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        let may_admit = BUCKETS.contains(&workspace.matching.len());
        let admit = || self.admit_by_buckets(selection, request, workspace);
        let Some((binding, cost)) = may_admit.then(admit).flatten() else {
            return self.decide(selection, request, workspace);
        };
        EngineAnswer::Decided(Decision {
            binding: binding.map(|(_, view)| view),
            domain: Some(&*self.compiled.domain),
            limits_by_index: &workspace.all,
            checked_keys: CheckedKeys::Passed { keys: &workspace.passed, cost },
            ..Decision::unlimited()
        })
    }

    /// Charges a request that all matching rules admit, and returns its cost. `None`, with nothing changed, if a rule is no
    /// simple token bucket or does not admit it, or if another quota left its state. For as many rules as [`BUCKETS`].
    #[inline(never)]
    fn admit_by_buckets(
        &self,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &mut Workspace,
    ) -> Option<(Binding<'d>, u32)> {
        let counters = self.counters?;
        let cost = simple_cost(request)?;
        let (shards, now) = (&self.engine.shards, self.now);
        let mut checks = ArrayVec::<BucketCheck<'d>, { *BUCKETS.end() }>::new_const();
        let mut wanted = 0;
        for number in &workspace.matching {
            let compiled_rule = self.compiled.rules.get(*number as usize)?;
            let simple = compiled_rule.simple.as_ref()?;
            let Quota::TokenBucket(quota) = &simple.quota else { return None };
            let values = self.compiled.domain.key_values(*number, selection);
            let digest = compiled_rule.key_hash.digest_state(values, simple.tag, simple.salt);
            let shard = shard_of(&digest);
            wanted |= 1 << shard;
            let (index, charged) = (None, GcraState::from_arrival(0));
            checks.push(BucketCheck { number: *number, compiled_rule, quota, digest, shard, index, charged });
        }
        let mut binding: Binding<'d> = None;
        {
            let mut locked = LockedShards::new();
            locked.lock(shards, wanted);
            for check in &mut checks {
                check.judge(now.at, cost, locked.shard(check.shard))?;
            }
            workspace.clear_notes();
            workspace.passed.clear();
            for BucketCheck { number, compiled_rule, quota, digest, shard, index, charged } in &checks {
                let (fresh, charge) =
                    (|| *charged, |state: &mut GcraState| (*state = *charged, digest.tag()));
                let buckets = &mut locked.shard(*shard).buckets;
                let (_, evicted) = buckets.change_at(*index, *digest, shards.memory(), now, fresh, charge);
                shards.count_evictions(evicted);
                counters.count_check(compiled_rule.slot, CheckResult::Pass);
                workspace.passed.push((*number, *digest));
                #[allow(clippy::indexing_slicing, reason = "each compiled rule has its rule")]
                let rule = &self.compiled.domain.rules()[*number as usize];
                let view = LimitView { rule, level: charged.level(quota, now.at) };
                if request.lists_all_limits && rule.advertise {
                    workspace.all.push(ListedLimit::passed(*number, view.level));
                }
                let is_binding = |(_, least): &(Slot, LimitView<'d>)| view.has_less_remaining(least);
                if compiled_rule.enforced() && binding.as_ref().is_none_or(is_binding) {
                    binding = Some((compiled_rule.slot, view));
                }
            }
        }
        let slot = binding.map_or(self.compiled.unnamed, |(slot, _)| slot);
        if is_sampled(counters.count_decision(slot, Verdict::Allow)) {
            self.record_busy_callers(&checks, cost, selection);
        }
        Some((binding, cost))
    }

    #[cold]
    fn record_busy_callers(&self, checks: &[BucketCheck<'_>], cost: u32, selection: &Selection<'_>) {
        for BucketCheck { number, compiled_rule, digest, .. } in checks {
            let (domain, slot, (_, salt)) =
                (&self.compiled.domain, compiled_rule.slot, compiled_rule.tag_and_salt(0));
            let key = digest.with_tag_and_salt(Tag::NONE, salt);
            let seen = SeenRequest { domain, rule: *number, slot, key, selection };
            self.record_caller(&seen, cost, true, None);
        }
    }
}

impl BucketCheck<'_> {
    /// Finds the state and charges a copy of it. `None` if the request does not pass, or if another quota left the state.
    #[inline]
    fn judge(&mut self, now: Timestamp, cost: u32, shard: &Shard) -> Option<()> {
        self.index = shard.buckets.find_index(&self.digest);
        let state = match self.index.and_then(|index| shard.buckets.at(index)) {
            Some((tag, state)) if tag == self.digest.tag() => *state,
            Some(_) => return None,
            None => GcraState::full(self.quota.scale(), now),
        };
        let (outcome, charged) = state.judge(self.quota, now, cost);
        self.charged = charged;
        (outcome == Outcome::Pass).then_some(())
    }
}

/// The number of buckets that the fast path checks: one has a path of its own, and few requests match more rules.
const BUCKETS: RangeInclusive<usize> = 2..=8;
