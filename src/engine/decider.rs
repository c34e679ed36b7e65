//! The entry of one decision thread into the engine, with its reusable buffers.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use super::Engine;
use super::admission::settle_up;
use super::check::{CheckStage, StageCheck};
use super::counters::ThreadCounters;
use super::decision::{ChargeError, Decision, EngineAnswer, InspectedCheck};
use super::digest::ShownDigest;
use super::idempotency::Grant;
use super::judgement::Judgement;
use super::refundable_costs;
use super::remote_check::{self, RemoteCheckResult};
use super::request::{Charge, Op, Request};
use super::rule_set::CompiledRuleSet;
use super::workspace::Workspace;
use crate::clock::{Now, Timestamp};
use crate::rules::Selection;

/// Makes decisions; each decision thread has its own. It holds a view of the rules in force that costs one
/// load to check, counters that no other thread writes, and reused buffers.
pub struct Decider {
    engine: Arc<Engine>,
    rule_set: Cache<Arc<ArcSwap<CompiledRuleSet>>, Arc<CompiledRuleSet>>,
    counters: Arc<ThreadCounters>,
    workspace: Workspace,
    batches: u64,
}

impl Decider {
    pub(super) fn new(engine: Arc<Engine>, counters: Arc<ThreadCounters>, number: u64) -> Decider {
        let rule_set = Cache::new(Arc::clone(&engine.rule_set));
        Decider { engine, rule_set, counters, workspace: Workspace::new(number), batches: 0 }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Judges one request: all matching rules are charged, or none.
    pub fn decide(&mut self, request: &Request<'_>, now: Now) -> EngineAnswer<'_> {
        let rule_set: &CompiledRuleSet = self.rule_set.load();
        let counters = (request.op != Op::Peek).then_some(&*self.counters);
        let workspace = &mut self.workspace;
        let mut selection = Selection::default();
        let compiled = rule_set.select(request, &mut selection, &mut workspace.matching);
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        panic_if_requested(request, false);
        let judgement = Judgement { engine: &self.engine, rule_set, compiled, counters, now };
        match judgement.find_only_rule(&workspace.matching, request) {
            Some(one) => judgement.decide_by_one_rule(&one, &selection, request, workspace),
            None => judgement.decide_by_several_rules(&selection, request, workspace),
        }
    }

    /// Judges a pending request again with the result of its remote check. The answer may be another one.
    pub fn resume(
        &mut self,
        request: &Request<'_>,
        result: RemoteCheckResult<'_>,
        now: Now,
    ) -> EngineAnswer<'_> {
        let engine = Arc::clone(&self.engine);
        remote_check::resume(self, &engine, request, result, now)
    }

    /// Charges or refunds the actual cost of a request. Returns whether a rule was charged.
    ///
    /// # Errors
    /// Its idempotency key belongs to another charge, or it is a refund that names no charge; nothing
    /// changes.
    pub fn charge(&mut self, charge: &Charge<'_>, now: Now) -> Result<bool, ChargeError> {
        if charge.refund_of.is_none() && !charge.trusted && refundable_costs::is_negative(&charge.amount) {
            return Err(ChargeError::NoRefundReference);
        }
        let rule_set: &CompiledRuleSet = self.rule_set.load();
        let compiled = rule_set.find_or_unlimited(charge.domain);
        let workspace = &mut self.workspace;
        let mut selection = Selection::default();
        compiled.select(charge.descriptors.attributes, &mut selection, &mut workspace.matching);
        let engine = &*self.engine;
        let judgement = Judgement { engine, rule_set, compiled, counters: None, now };
        judgement.charge(&selection, charge, workspace)
    }

    #[inline]
    pub fn should_time_decision(&mut self) -> bool {
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(TIMED_ONE_IN)
    }

    /// Records a timed batch: the time of all its decisions together, in nanoseconds, counts for each of
    /// them.
    pub fn record_duration(&self, nanos: u64, decisions: u64) {
        self.counters.record_duration(nanos, decisions);
    }

    /// Counts a panic during a judgement. The engine remains consistent: states change in single steps after
    /// all rules are judged.
    pub fn count_panic(&self) {
        self.counters.count_panic();
    }
}

impl Engine {
    /// Evaluates a PEEK outside of the decision threads and passes its decision to `read`. It allocates its buffers: for
    /// operators.
    pub fn inspect<T>(&self, request: &Request<'_>, now: Now, read: impl FnOnce(&Decision<'_>) -> T) -> T {
        assert!(request.op == Op::Peek, "an inspection changes nothing");
        let rule_set = self.rule_set.load_full();
        let compiled = rule_set.find_or_unlimited(request.domain);
        let (mut workspace, mut selection) = (Workspace::new(0), Selection::default());
        compiled.select(request.descriptors.attributes, &mut selection, &mut workspace.matching);
        let judgement = Judgement { engine: self, rule_set: &rule_set, compiled, counters: None, now };
        match judgement.decide(&selection, request, &mut workspace) {
            EngineAnswer::Decided(decision) => read(&decision),
            EngineAnswer::Conflict | EngineAnswer::TooManyLeases | EngineAnswer::RemoteCheck(_) => {
                unreachable!("a PEEK names no grant, takes no lease and waits for no check")
            }
        }
    }
}

impl Engine {
    /// Passes the check of the rule of a domain that counts by this key, with a cost of one, if it has a state of the key or
    /// blocks it. Changes and counts nothing.
    pub fn inspect_key<T>(
        &self,
        domain: &str,
        key: ShownDigest,
        now: Now,
        read: impl FnOnce(&[InspectedCheck<'_>]) -> T,
    ) -> T {
        let rule_set = self.rule_set.load_full();
        let compiled = rule_set.find_or_unlimited(domain);
        let judgement = Judgement { engine: self, rule_set: &rule_set, compiled, counters: None, now };
        let context = judgement.check_context(None);
        let mut found = Vec::new();
        for (index, (rule, compiled_rule)) in (0u32..).zip(compiled.each_rule()) {
            if !key.is_of(domain, &rule.name) {
                continue;
            }
            let allowances = 0..u32::try_from(rule.limit.allowances.len()).unwrap_or(u32::MAX);
            let mut checks = allowances.map(|allowance| {
                let mut check =
                    StageCheck::new(index, compiled_rule, key.key(), Timestamp::ORIGIN, allowance, 1);
                let is_known = check.inspect(&context, &mut self.shards.lock(check.shard()));
                (check, is_known)
            });
            let Some((check, _)) = checks.find(|(_, is_known)| *is_known) else { continue };
            let is_uncertain = checks.any(|(_, is_known)| is_known);
            let found_here = InspectedCheck::new(domain, rule, &check, CheckStage::Concurrency);
            found.push(InspectedCheck { is_uncertain, ..found_here });
        }
        read(&found)
    }
}

impl Judgement<'_> {
    /// Charges or refunds after the fact. Returns whether any rule applied.
    fn charge(
        &self,
        selection: &Selection<'_>,
        charge: &Charge<'_>,
        workspace: &mut Workspace,
    ) -> Result<bool, ChargeError> {
        if self.find_list_entry(&workspace.matching).is_some_and(|entry| entry.decides) {
            return Ok(false);
        }
        workspace.gather_charge(self.compiled, selection, charge);
        if workspace.checks.is_empty() {
            return Ok(false);
        }
        let mut named = self.engine.idempotency.lock_charge(charge, &mut workspace.hash_buffer);
        if let Some(named) = &named
            && named.find_grant(self.now)?.is_some()
        {
            return Ok(true);
        }
        let (mut refunded, mut context) = (None, self.check_context(None));
        if charge.refund_of.is_some() && refundable_costs::is_negative(&charge.amount) {
            let taken = self.engine.take_refundable_cost(charge, &mut workspace.hash_buffer, self.now);
            let Some(taken) = taken else { return Ok(false) };
            context.charged_at = Some(taken.at);
            refunded = taken.name.map(|name| (name, taken.at));
            workspace.exclude_lease_refunds(&self.compiled.domain);
        }
        let (checks, amounts) = workspace.checks_and_amounts();
        settle_up(&context, checks, amounts);
        if let Some(named) = &mut named {
            let name = named.digest();
            self.engine.record_refundable_charge(charge, name, &mut workspace.hash_buffer, self.now);
            let grant = Grant::from_decision(&Decision::unlimited(), self.rule_set.number, self.now);
            named.remember_grant(grant, &self.engine.shards, self.now);
        }
        // Both names may be in one shard.
        drop(named);
        if let Some((name, at)) = refunded {
            self.engine.idempotency.forget_if(&name, &self.engine.shards, |grant| grant.at == at);
        }
        Ok(true)
    }
}

/// One batch in 64 is timed: two clock readings cost more than a decision.
const TIMED_ONE_IN: u64 = 64;

/// Returns `value`; a debug build may panic here, under the locks of a judgement.
#[inline]
pub(super) fn under_locks<T>(_request: &Request<'_>, value: T) -> T {
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    panic_if_requested(_request, true);
    value
}

/// A test hook that panics while judging: with the value `locked` under the locks of all states, else before.
/// Not in a release build.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
fn panic_if_requested(request: &Request<'_>, is_locked: bool) {
    #[allow(clippy::panic, reason = "that is what it is for")]
    if let Some((_, value)) = request.descriptors.attributes.iter().find(|(name, _)| *name == PANIC_ATTRIBUTE)
        && (*value == "locked") == is_locked
    {
        // As a library's panic message may, this one contains input.
        panic!("asked to panic while judging {value}");
    }
}

/// The attribute that makes a debug build panic while judging.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const PANIC_ATTRIBUTE: &str = "debug-panic";
