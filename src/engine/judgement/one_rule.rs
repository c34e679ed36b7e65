//! The fast path of the common request: exactly one rule with one quota and no extras, and no lease. One
//! lock, one look-up, no lists.

use super::{Judgement, retry_after};
use crate::clock::Micros;
use crate::engine::algorithm::AlgorithmTable;
use crate::engine::callers::{SeenRequest, is_sampled};
use crate::engine::counters::{CheckResult, ThreadCounters};
use crate::engine::decision::{CheckedKeys, Decision, EngineAnswer, LimitView};
use crate::engine::digest::Digest;
use crate::engine::request::{Cost, Op, Request, UNIT_REQUESTS};
use crate::engine::rule_set::{CompiledRule, SimpleRule};
use crate::engine::sketch::Ranking;
use crate::engine::tag::Tag;
use crate::engine::workspace::{ListedLimit, Workspace};
use crate::limit::{Outcome, Quota, QuotaLevel};
use crate::rules::{Rule, Selection};
use crate::terms::{NoteKind, Verdict};

pub(in crate::engine) struct OneRule<'d> {
    number: u32,
    rule: &'d Rule,
    compiled_rule: &'d CompiledRule,
    plain: &'d SimpleRule,
    counters: &'d ThreadCounters,
    /// The cost in requests; never zero.
    cost: u32,
}

impl<'d> Judgement<'d> {
    /// Returns the rule if exactly one simple rule applies and the request may change its state.
    #[inline]
    pub(in crate::engine) fn find_only_rule(
        &self,
        matching: &[u32],
        request: &Request<'_>,
    ) -> Option<OneRule<'d>> {
        let [number] = *matching else { return None };
        let compiled_rule = self.compiled.rules.get(number as usize)?;
        let plain = compiled_rule.simple.as_ref()?;
        let cost = simple_cost(request)?;
        let rule = self.compiled.domain.rules().get(number as usize)?;
        Some(OneRule { number, rule, compiled_rule, plain, counters: self.counters?, cost })
    }

    #[inline]
    pub(in crate::engine) fn decide_by_one_rule<'w: 'd>(
        &self,
        one: &OneRule<'d>,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        // Most rules are token buckets: keep the others off their path.
        match &one.plain.quota {
            Quota::TokenBucket(quota) => self.decide_by_one_quota(quota, one, selection, request, workspace),
            _ => self.decide_by_other_algorithm(one, selection, request, workspace),
        }
    }

    #[inline(never)]
    fn decide_by_other_algorithm<'w: 'd>(
        &self,
        one: &OneRule<'d>,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        match &one.plain.quota {
            // A rule with remote checks takes the general path.
            Quota::FleetBudget(quota) if quota.checks_remotely_now() => {
                self.decide_by_all_rules(selection, request, workspace, None)
            }
            Quota::FleetBudget(quota) => {
                self.decide_by_one_quota(&**quota, one, selection, request, workspace)
            }
            Quota::LeakyBucket(quota) => self.decide_by_one_quota(quota, one, selection, request, workspace),
            Quota::FixedWindow(quota) => self.decide_by_one_quota(quota, one, selection, request, workspace),
            Quota::SlidingLog(quota) => self.decide_by_one_quota(quota, one, selection, request, workspace),
            Quota::SlidingWindow(quota) => {
                self.decide_by_one_quota(quota, one, selection, request, workspace)
            }
            // Unreachable: token buckets are judged above, where a second caller here would cost a call, and concurrency
            // rules are never simple.
            Quota::TokenBucket(_) | Quota::Concurrency(_) => {
                self.decide_by_all_rules(selection, request, workspace, None)
            }
        }
    }

    #[inline]
    fn decide_by_one_quota<'w: 'd, A: AlgorithmTable>(
        &self,
        quota: &A,
        one: &OneRule<'d>,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        let OneRule { number, rule, compiled_rule, plain, counters, cost } = *one;
        let values = self.compiled.domain.key_values(number, selection);
        let digest = compiled_rule.key_hash.digest_state(values, plain.tag, plain.salt);
        let Some((outcome, level)) = self.admit_by_quota(quota, one, digest, request) else {
            // The general path converts a state of another quota, or migrates one under another digest.
            return self.decide_by_all_rules(selection, request, workspace, None);
        };
        workspace.clear_notes();
        let passes = outcome.is_allowed();
        let level = if A::IS_SHARED && !passes { level.for_refusal(cost) } else { level };
        if !passes && !compiled_rule.enforced() {
            workspace.notes.push((NoteKind::Shadow, number));
        }
        if request.lists_all_limits && rule.advertise {
            let refuses = !passes && compiled_rule.enforced();
            workspace.all.push(ListedLimit { refuses, ..ListedLimit::passed(number, level) });
        }
        let (verdict, retry) = match outcome {
            Outcome::Queued(wait) if compiled_rule.enforced() && wait > Micros::ZERO => {
                (Verdict::Wait, Some(wait))
            }
            Outcome::Later(_) | Outcome::Never if compiled_rule.enforced() => {
                (Verdict::Limit, retry_after(outcome))
            }
            _ => (Verdict::Allow, Some(Micros::ZERO)),
        };
        let is_sampled = is_sampled(counters.count_decision(compiled_rule.reply_slot, verdict));
        let refusal = if compiled_rule.enforced() { CheckResult::Refuse } else { CheckResult::WouldRefuse };
        counters.count_check(compiled_rule.slot, if passes { CheckResult::Pass } else { refusal });
        let mut key = digest;
        if is_sampled || !passes {
            // Without the tag of the state; the salt, mixed in twice, cancels.
            key = digest.with_tag_and_salt(Tag::NONE, plain.salt);
            let seen = SeenRequest {
                domain: &self.compiled.domain,
                rule: number,
                slot: compiled_rule.slot,
                key,
                selection,
            };
            let ranking = if compiled_rule.enforced() { Ranking::Refused } else { Ranking::WouldRefuse };
            self.record_caller(&seen, cost, is_sampled, (!passes).then_some(ranking));
        }
        let rate = || rule.limit.allowance(0)?.rate.as_deref();
        EngineAnswer::Decided(Decision {
            verdict,
            rate: (verdict == Verdict::Limit).then(rate).flatten(),
            binding: compiled_rule.enforced().then_some(LimitView { rule, level }),
            retry_after: retry,
            domain: Some(&*self.compiled.domain),
            notes: &workspace.notes,
            limits_by_index: &workspace.all,
            checked_keys: CheckedKeys::One { rule: number, key, cost, passes },
            ..Decision::unlimited()
        })
    }

    /// Judges by a quota and charges if it passes. `None`, with nothing changed, if another quota left the
    /// state.
    #[inline]
    fn admit_by_quota<A: AlgorithmTable>(
        &self,
        quota: &A,
        one: &OneRule<'_>,
        digest: Digest,
        request: &Request<'_>,
    ) -> Option<(Outcome, QuotaLevel)> {
        let shards = &self.engine.shards;
        let now = self.now;
        // A shadow wait delays nothing.
        let mut shard = shards.lock_for(&digest);
        let may_call = A::IS_SHARED && shard.share_sync_queue.has_room();
        let mut calls = false;
        let mut admit = |state: &mut A::State| {
            let outcome = quota.admit(state, now, one.cost, request.wait_max, one.compiled_rule.enforced());
            if A::IS_SHARED {
                if !outcome.is_allowed() {
                    quota.record_refusal(state, now, one.cost);
                }
                calls = may_call && A::take_sync_request(state);
            }
            outcome
        };
        let table = A::table_mut(&mut shard);
        let Some(mut found) = table.entry(&digest) else {
            let mut state = quota.new_state(now);
            let outcome = admit(&mut state);
            let level = quota.level(&state, now);
            if outcome.is_allowed() || A::IS_SHARED {
                let tag = A::tag(digest.tag(), &level);
                let evicted = table.insert(digest.tagged(tag), state, shards.memory(), now);
                shards.count_evictions(evicted);
            }
            if A::IS_SHARED && calls {
                let key = digest.with_tag_and_salt(Tag::NONE, one.plain.salt);
                shard.share_sync_queue.push(key, quota.budget(), &shards.shares_due);
            }
            return Some((outcome, level));
        };
        if A::CONVERTS_STATES && found.tag() != digest.tag() {
            return None;
        }
        if let Some(level) = quota.admit_at_once(found.state_mut(), now, one.cost) {
            return Some((Outcome::Pass, level));
        }
        let (outcome, grown) = found.change(admit, shards.memory());
        let level = quota.level(found.state(), now);
        let tag = found.tag();
        found.set_tag(if outcome.is_allowed() { A::tag(tag, &level) } else { A::tag_refusing(tag) });
        if grown > 0 {
            shards.count_evictions(table.evict_bytes(shards.memory(), grown, now));
        }
        if A::IS_SHARED && calls {
            let key = digest.with_tag_and_salt(Tag::NONE, one.plain.salt);
            shard.share_sync_queue.push(key, quota.budget(), &shards.shares_due);
        }
        Some((outcome, level))
    }
}

/// Returns the cost of a request that simple rules can decide: not zero, and without a lease or an idempotency key.
#[inline]
pub(super) fn simple_cost(request: &Request<'_>) -> Option<u32> {
    let is_work = request.op == Op::Acquire && request.session.is_some();
    if is_work || request.idempotency_key.is_some() || request.oversized {
        return None;
    }
    let cost = match request.cost {
        Cost::Requests(cost) => cost,
        Cost::Units(_) => request.cost.in_unit(UNIT_REQUESTS)?,
    };
    (cost > 0).then_some(cost)
}
