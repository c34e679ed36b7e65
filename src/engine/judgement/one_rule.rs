//! The fast path of the common request: exactly one rule with one quota and no extras, and no lease. One
//! lock, one look-up, no lists.

use super::noting::is_sampled;
use super::{Judgement, retry};
use crate::clock::Micros;
use crate::engine::algorithm::AlgorithmTable;
use crate::engine::callers::SeenRequest;
use crate::engine::counters::{CheckResult, ThreadCounters};
use crate::engine::decision::{Decision, EngineAnswer, LimitView, LookedAt, NoteKind, RuleCheck, Verdict};
use crate::engine::digest::Digest;
use crate::engine::request::{Op, Request, UNIT_REQUESTS};
use crate::engine::ruling::{CompiledRule, Plain};
use crate::engine::sketch::Ranking;
use crate::engine::tag::Tag;
use crate::engine::workspace::Workspace;
use crate::limit::{Outcome, Quota, QuotaLevel};
use crate::rules::{Rule, Selection};

pub(in crate::engine) struct OneRule<'d> {
    number: u32,
    rule: &'d Rule,
    terms: &'d CompiledRule,
    plain: &'d Plain,
    counters: &'d ThreadCounters,
    /// The cost in requests; never zero.
    cost: u32,
}

impl<'d> Judgement<'d> {
    /// Returns the rule if exactly one simple rule applies and the request may change its state.
    #[inline]
    pub(in crate::engine) fn one_rule(&self, matching: &[u32], request: &Request<'_>) -> Option<OneRule<'d>> {
        let [number] = *matching else { return None };
        let is_work = request.op == Op::Acquire && request.session.is_some();
        let terms = self.terms.rules.get(number as usize)?;
        let plain =
            terms.plain.as_ref().filter(|_| !is_work && request.repeat.is_none() && !request.oversized)?;
        let cost = request.cost.in_unit(UNIT_REQUESTS).filter(|cost| *cost > 0)?;
        let rule = self.domain.rules().get(number as usize)?;
        Some(OneRule { number, rule, terms, plain, counters: self.counters?, cost })
    }

    #[inline]
    pub(in crate::engine) fn of_one<'w: 'd>(
        &self,
        one: &OneRule<'d>,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        // Most rules are token buckets: keep the others off their path.
        match &one.plain.quota {
            Quota::TokenBucket(quota) => self.of_one_by(quota, one, selection, request, workspace),
            _ => self.of_another(one, selection, request, workspace),
        }
    }

    #[inline(never)]
    fn of_another<'w: 'd>(
        &self,
        one: &OneRule<'d>,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        match &one.plain.quota {
            Quota::LeakyBucket(quota) => self.of_one_by(quota, one, selection, request, workspace),
            Quota::FixedWindow(quota) => self.of_one_by(quota, one, selection, request, workspace),
            Quota::SlidingLog(quota) => self.of_one_by(quota, one, selection, request, workspace),
            Quota::SlidingWindow(quota) => self.of_one_by(quota, one, selection, request, workspace),
            // A rule with remote checks takes the general path.
            Quota::Share(quota) if quota.asks_now() => self.of_all(selection, request, workspace, None),
            Quota::Share(quota) => self.of_one_by(&**quota, one, selection, request, workspace),
            // Unreachable: token buckets are judged above, and concurrency rules are never simple.
            Quota::TokenBucket(_) | Quota::Concurrency(_) | Quota::Places(_) => {
                self.of_all(selection, request, workspace, None)
            }
        }
    }

    #[inline]
    fn of_one_by<'w: 'd, A: AlgorithmTable>(
        &self,
        quota: &A,
        one: &OneRule<'d>,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        let OneRule { number, rule, terms, plain, counters, cost } = *one;
        let values = self.domain.key_values(number, selection);
        let digest = terms.key_hash.digest_of_state(values, plain.tag, plain.salt);
        let Some((outcome, level)) = self.admit_one(quota, one, digest, request) else {
            // The general path converts a state of another quota, or migrates one under another digest.
            return self.of_all(selection, request, workspace, None);
        };
        workspace.clear_notes();
        let passes = outcome.passes();
        let level = if A::IS_SHARED && !passes { level.refusing(cost) } else { level };
        if !passes && !terms.enforced {
            workspace.notes.push((NoteKind::Shadow, number));
        }
        if request.all && rule.advertise {
            workspace.all.push((number, level));
        }
        let (verdict, retry) = match outcome {
            Outcome::Queued(wait) if terms.enforced && wait > Micros::ZERO => (Verdict::Wait, Some(wait)),
            Outcome::Later(_) | Outcome::Never if terms.enforced => (Verdict::Limit, retry(outcome)),
            _ => (Verdict::Allow, Some(Micros::ZERO)),
        };
        let is_sampled = is_sampled(counters.decided(terms.answered, verdict));
        let refusal = if terms.enforced { CheckResult::Refuse } else { CheckResult::WouldRefuse };
        counters.check(terms.slot, if passes { CheckResult::Pass } else { refusal });
        if is_sampled || !passes {
            // The salt, mixed in twice, cancels.
            let key = digest.of(plain.tag, plain.salt);
            let seen = SeenRequest { domain: self.domain, rule: number, slot: terms.slot, key, selection };
            let ranking = if terms.enforced { Ranking::Refused } else { Ranking::WouldRefuse };
            self.note_caller(&seen, cost, is_sampled, (!passes).then_some(ranking));
        }
        EngineAnswer::Decided(Decision {
            verdict,
            binding: terms.enforced.then_some(LimitView { rule, level }),
            listed: None,
            shedder: None,
            lease: None,
            retry,
            priority: None,
            domain: Some(self.domain),
            notes: &workspace.notes,
            all: &workspace.all,
            looked_at: LookedAt::One(RuleCheck { rule: number, key: digest.hash(), cost, passes }),
        })
    }

    /// Judges by a quota and charges if it passes. `None`, with nothing changed, if another quota left the
    /// state.
    #[inline]
    fn admit_one<A: AlgorithmTable>(
        &self,
        quota: &A,
        one: &OneRule<'_>,
        digest: Digest,
        request: &Request<'_>,
    ) -> Option<(Outcome, QuotaLevel)> {
        let shards = &self.engine.shards;
        let now = self.now;
        // A shadow wait delays nothing.
        let mut shard = shards.lock(shards.of(&digest));
        let may_call = A::IS_SHARED && shard.calls.has_room();
        let mut calls = false;
        let mut admit = |state: &mut A::State| {
            let outcome = quota.admit(state, now, one.cost, request.wait_max, one.terms.enforced);
            if A::IS_SHARED {
                if !outcome.passes() {
                    quota.note_refused(state, now, one.cost);
                }
                calls = may_call && A::calls(state);
            }
            outcome
        };
        let table = A::table_mut(&mut shard);
        let Some(mut found) = table.entry(&digest) else {
            let mut state = quota.fresh(now);
            let outcome = admit(&mut state);
            let level = quota.level(&state, now);
            if outcome.passes() || A::IS_SHARED {
                let tag = A::tag(digest.tag(), &level);
                let evicted = table.insert(digest.tagged(tag), state, shards.memory(), now);
                shards.count_evictions(evicted);
            }
            if A::IS_SHARED && calls {
                shard.calls.push(digest.of(Tag::NONE, one.plain.salt), quota.budget(), shards);
            }
            return Some((outcome, level));
        };
        if A::ADOPTS && found.tag() != digest.tag() {
            return None;
        }
        if let Some(level) = quota.admit_at_once(found.state_mut(), now, one.cost) {
            return Some((Outcome::Pass, level));
        }
        let (outcome, grown) = found.change(admit, shards.memory());
        let level = quota.level(found.state(), now);
        let tag = found.tag();
        found.set_tag(if outcome.passes() { A::tag(tag, &level) } else { A::tag_refusing(tag) });
        if grown > 0 {
            shards.count_evictions(table.make_good(shards.memory(), grown, now));
        }
        if A::IS_SHARED && calls {
            shard.calls.push(digest.of(Tag::NONE, one.plain.salt), quota.budget(), shards);
        }
        Some((outcome, level))
    }
}
