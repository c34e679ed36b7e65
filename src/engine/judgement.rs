//! The judgement of one request: selects the rules in force that apply and combines their results.

mod one_rule;
mod several_rules;

use super::Engine;
use super::admission::{Admission, Intent, admit};
use super::check::{CheckContext, CheckStage, StageCheck};
use super::counters::{CheckResult, ThreadCounters};
use super::decider::under_locks;
use super::decision::{CheckedKeys, Conflict, Decision, EngineAnswer, LimitView};
use super::gate::{Gate, GateRefusal, GateRequest};
use super::idempotency::{Grant, NamedRequest};
use super::leases::{NewLease, Reservation, Session};
use super::remote_check::Shortfalls;
use super::request::{Op, Request};
use super::rule_set::{CompiledDomain, CompiledRuleSet};
use super::slots::Slot;
use super::workspace::Workspace;
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::Outcome;
use crate::rules::{ListKind, ListedEntry, Mode, Rule, Selection};
use crate::shed::hint;
use crate::terms::{NoteKind, Verdict};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy)]
pub(super) struct Judgement<'d> {
    pub(super) engine: &'d Engine,
    pub(super) rule_set: &'d CompiledRuleSet,
    pub(super) compiled: &'d CompiledDomain,
    /// `None`: count nothing.
    pub(super) counters: Option<&'d ThreadCounters>,
    pub(super) now: Now,
}

#[derive(Clone, Copy)]
pub(super) struct ListEntry<'d> {
    number: u32,
    slot: Slot,
    /// Whether it decides alone: it exempts, or its denial is enforced.
    pub(super) decides: bool,
    listed: &'d ListedEntry,
}

impl<'d> Judgement<'d> {
    /// Judges by any number of rules of any kind and by lists. A request with an idempotency key is judged
    /// once: a retry gets the same grant. An ACQUIRE of a session gets a lease.
    #[inline(never)]
    pub(super) fn decide<'w: 'd>(
        &self,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
    ) -> EngineAnswer<'d> {
        let engine = self.engine;
        let session = request.session.filter(|_| request.op == Op::Acquire);
        // Locked to the end: of two simultaneous requests with one name, one is judged and the other is its
        // retry.
        let mut named = match request.op {
            Op::Peek => None,
            Op::Acquire | Op::Hit => engine.idempotency.lock_request(request, &mut workspace.hash_buffer),
        };
        match named.as_ref().map_or(Ok(None), |named| named.find_grant(self.now)) {
            Ok(None) => {}
            Ok(Some(grant)) => {
                return EngineAnswer::Decided(self.replay(&grant, selection, request, session, workspace));
            }
            Err(Conflict) => return EngineAnswer::Conflict,
        }
        let name = named.as_ref().map(NamedRequest::digest);
        let reserved = match session.map(|session| engine.leases.reserve(session, name)) {
            None => None,
            Some(None) => return EngineAnswer::TooManyLeases,
            Some(reserved) => reserved,
        };
        let answer = self.decide_by_all_rules(selection, request, workspace, reserved);
        if let (Some(named), EngineAnswer::Decided(decision)) = (&mut named, &answer)
            && self.should_remember(decision, session.is_some())
        {
            engine.record_refundable_cost(request, decision, named.digest(), self.now);
            named.remember_grant(
                Grant::from_decision(decision, self.rule_set.number, self.now),
                &engine.shards,
                self.now,
            );
        }
        answer
    }

    /// Returns the grant of an earlier request again, without its lease if that has ended.
    fn replay<'w: 'd>(
        &self,
        grant: &Grant,
        selection: &Selection<'_>,
        request: &Request<'_>,
        session: Option<&Session>,
        workspace: &'w mut Workspace,
    ) -> Decision<'d> {
        let mut decision = grant.replay(self.rule_set.number, &self.compiled.domain, self.now, workspace);
        let is_live = |lease: &u64| {
            session.is_some_and(|session| self.engine.leases.is_live(session, *lease, self.now))
        };
        decision.lease = decision.lease.filter(is_live);
        let priority = self.compiled.domain.priority_index(request.priority, selection);
        decision.priority = self.priority_name(priority);
        self.count_decision(self.decision_slot(&decision), decision.verdict, priority);
        decision
    }

    /// Whether a retry gets the same answer. Not for work that was abandoned before its grant; unlimited
    /// requests need no record.
    fn should_remember(&self, decision: &Decision<'_>, is_work: bool) -> bool {
        let is_granted = matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        let is_limited = !self.compiled.gates.is_empty() || decision.checks().next().is_some();
        if is_work { decision.lease.is_some() } else { is_granted && is_limited }
    }

    /// Judges once, regardless of the idempotency key.
    fn decide_by_all_rules<'w: 'd>(
        &self,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
        reserved: Option<Reservation<'_>>,
    ) -> EngineAnswer<'d> {
        let priority = self.compiled.domain.priority_index(request.priority, selection);
        let entry = self.find_list_entry(&workspace.matching);
        if let Some(entry) = entry.as_ref().filter(|entry| entry.decides) {
            workspace.clear();
            let mut decision = self.decide_by_list(entry, priority);
            if let Some(reserved) = reserved.filter(|_| decision.verdict == Verdict::Allow) {
                // An exempt request is never shed, and enters its pool's work by its priority as usual.
                let gate = self.find_gate(reserved.session);
                let is_noncritical = gate.is_none_or(|gate| gate.shedding.is_noncritical(priority));
                reserved.session.pool().add_lease(is_noncritical, None);
                decision.lease =
                    self.grant_lease(reserved, request, self.now.at, Some(is_noncritical), workspace);
            }
            return EngineAnswer::Decided(decision);
        }
        workspace.gather(self.compiled, selection, request);
        if let Some(entry) = entry {
            // Shadow denial: judge on as if the entry did not match.
            workspace.notes.push((NoteKind::Shadow, entry.number));
            self.count_check(entry.slot, CheckResult::WouldRefuse);
        }
        let gate = request.session.and_then(|session| self.find_gate(session));
        let unmatched = self.compiled.unmatched.filter(|_| workspace.checks.is_empty() && gate.is_none());
        if let Some((counters, reason)) = self.counters.zip(unmatched) {
            counters.count_unmatched(reason);
        }
        if self.rule_set.refuses_uncounted(request) && !workspace.checks.iter().any(StageCheck::is_oversized)
        {
            return EngineAnswer::Decided(self.refuse_uncounted(priority));
        }
        match self.admit(selection, request, workspace, gate, priority, reserved) {
            Ok(decision) => EngineAnswer::Decided(Decision { unmatched, ..decision }),
            Err(shortfalls) => EngineAnswer::RemoteCheck(shortfalls),
        }
    }

    pub(super) fn check_context(&self, wait_max: Option<Micros>) -> CheckContext<'d> {
        CheckContext {
            shards: &self.engine.shards,
            rules: self.compiled.domain.rules(),
            compiled: &self.compiled.rules,
            now: self.now,
            wait_max,
            has_elastic_room: false,
            leases: false,
            charged_at: None,
            oversized: false,
        }
    }

    /// Refuses a request permanently whose cost exceeds any countable value and that no rule counts.
    #[cold]
    fn refuse_uncounted(&self, priority: Option<usize>) -> Decision<'d> {
        self.count_decision(self.compiled.unnamed, Verdict::Limit, priority);
        let domain = Some(&*self.compiled.domain);
        let priority = self.priority_name(priority);
        Decision { verdict: Verdict::Limit, retry_after: None, priority, domain, ..Decision::unlimited() }
    }

    fn find_gate(&self, session: &Session) -> Option<&'d Gate> {
        self.compiled.gates.iter().find(|gate| Arc::ptr_eq(&gate.pool, session.pool()))
    }

    /// Returns the list entry that decides: the first that exempts, else the first that denies; if none is
    /// enforced, the first shadow denial.
    pub(super) fn find_list_entry(&self, matching: &[u32]) -> Option<ListEntry<'d>> {
        let rules = self.compiled.domain.rules().len();
        let mut would: Option<ListEntry<'d>> = None;
        for number in matching.iter().filter(|number| **number as usize >= rules) {
            #[allow(clippy::indexing_slicing, reason = "each entry has its terms: it would not deny without")]
            let (slot, mode) = self.compiled.lists[*number as usize - rules];
            let decides = mode == Mode::Enforce;
            let entry =
                ListEntry { number: *number, slot, decides, listed: self.compiled.domain.listed(*number)? };
            if decides {
                return Some(entry);
            }
            would = would.or(Some(entry));
        }
        would
    }

    fn decide_by_list(&self, entry: &ListEntry<'d>, priority: Option<usize>) -> Decision<'d> {
        let (verdict, check, retry) = match entry.listed.kind {
            ListKind::Exempt => (Verdict::Allow, CheckResult::Pass, Some(Micros::ZERO)),
            ListKind::Deny => (Verdict::Deny, CheckResult::Refuse, None),
        };
        self.count_decision(entry.slot, verdict, priority);
        self.count_check(entry.slot, check);
        let priority = self.priority_name(priority);
        Decision {
            verdict,
            listed: Some(entry.listed),
            retry_after: retry,
            priority,
            ..Decision::unlimited()
        }
    }

    fn admit<'w: 'd>(
        &self,
        selection: &Selection<'_>,
        request: &Request<'_>,
        workspace: &'w mut Workspace,
        gate: Option<&'d Gate>,
        priority: Option<usize>,
        reserved: Option<Reservation<'_>>,
    ) -> Result<Decision<'d>, Arc<Shortfalls>> {
        let intent = choose_intent(request);
        let mut context = self.check_context(request.wait_max);
        context.leases = reserved.is_some();
        context.oversized = request.oversized;
        context.has_elastic_room = request.session.is_some_and(|session| session.pool().has_room());
        let gate_request = GateRequest {
            priority,
            attributes: request.descriptors.attributes,
            queued: request.queued,
            enters_work: reserved.is_some(),
            now: self.now,
            counters: self.counters,
            callers: &self.engine.caller_hash,
            draws: if intent == Intent::Peek { &workspace.peek_draws } else { &workspace.draws },
            records_caller: intent != Intent::Peek,
        };
        let notes = &mut workspace.shed_notes;
        let mut judge_gate = || under_locks(request, gate).and_then(|gate| gate.judge(&gate_request, notes));
        let mut admission = admit(&context, &mut workspace.checks, intent, &mut judge_gate);
        if admission == Admission::NeedsRemoteCheck {
            let looks = gate_request.without_recording(&workspace.peek_draws);
            let sheds = gate.and_then(|gate| gate.judge(&looks, &mut workspace.shed_notes));
            admission = before_remote_check(&context, &mut workspace.checks, sheds)?;
            workspace.shed_notes.clear();
        }
        let granted = matches!(admission, Admission::Granted(_));
        let stage = stage(&workspace.checks);
        workspace.record_notes(&self.compiled.domain, granted, stage, self.counters);
        workspace.list_all_limits(&self.compiled.domain, request);
        let lease = admission.start(self.now.at).zip(reserved).and_then(|(starts_at, reserved)| {
            let is_noncritical = gate.map(|gate| gate.shedding.is_noncritical(priority));
            self.grant_lease(reserved, request, starts_at, is_noncritical, workspace)
        });
        let (mut shedder, mut slot, mut refusing) = (None, None, None);
        let (verdict, binding, retry) = match admission {
            Admission::Granted(wait) => {
                let verdict = if wait > Micros::ZERO { Verdict::Wait } else { Verdict::Allow };
                (verdict, self.least_remaining(&workspace.checks), Some(wait))
            }
            Admission::Refused | Admission::NeedsRemoteCheck => {
                let (binding, retry) = longest_wait(&workspace.checks, stage, self.now);
                refusing = binding;
                (Verdict::Limit, binding.and_then(|check| Some((check.slot, self.limit_view(check)?))), retry)
            }
            Admission::Shed(refusal) => {
                shedder =
                    gate.and_then(|gate| self.compiled.domain.shedder_name(gate.first + refusal.part as u32));
                slot = gate.and_then(|gate| gate.slots.get(refusal.part as usize)).copied();
                (Verdict::Shed, None, Some(refusal.retry))
            }
        };
        let slot = slot.or(binding.map(|(slot, _)| slot)).unwrap_or(self.compiled.unnamed);
        let count = self.count_decision(slot, verdict, priority);
        self.record_callers(count, &workspace.checks, stage, selection);
        Ok(Decision {
            verdict,
            binding: binding.map(|(_, view)| view),
            shedder,
            lease,
            retry_after: retry,
            priority: self.priority_name(priority),
            rate: refusing.and_then(|check| self.rate(check)),
            blocked: refusing.is_some_and(|check| check.is_blocked),
            domain: Some(&*self.compiled.domain),
            notes: &workspace.notes,
            limits_by_index: &workspace.all,
            checked_keys: CheckedKeys::Several(&workspace.checks),
            ..Decision::unlimited()
        })
    }

    /// Grants the lease of an admitted request, with everything that ends with it. `is_noncritical`: as the pool counts it
    /// already; `None`: it does not yet.
    #[inline(never)]
    fn grant_lease(
        &self,
        reserved: Reservation<'_>,
        request: &Request<'_>,
        starts_at: Timestamp,
        is_noncritical: Option<bool>,
        workspace: &mut Workspace,
    ) -> Option<u64> {
        workspace.add_ties(self.compiled, reserved.name, self.now);
        let cost = self.engine.tie_cost(request, workspace);
        let is_noncritical = is_noncritical.unwrap_or_else(|| reserved.session.pool().add_lease(true, None));
        let (lasts, ties) = (workspace.lease_ttl.unwrap_or(LEASE_TTL_DEFAULT), &workspace.ties);
        let lease = NewLease { starts_at, ttl: lasts, request: request.id, ties, is_noncritical, cost };
        self.engine.grant_lease(reserved, &lease, self.now)
    }

    fn count_check(&self, slot: Slot, check: CheckResult) {
        if let Some(counters) = self.counters {
            counters.count_check(slot, check);
        }
    }

    /// Counts a decision at the slot of the binding rule and at its priority. Returns the count of the
    /// former.
    fn count_decision(&self, slot: Slot, verdict: Verdict, priority: Option<usize>) -> Option<u64> {
        let counters = self.counters?;
        if let Some(priority) = priority.and_then(|index| self.compiled.priorities.get(index)) {
            counters.count_priority(*priority, verdict);
        }
        Some(counters.count_decision(slot, verdict))
    }

    fn priority_name(&self, index: Option<usize>) -> Option<&'d str> {
        index.and_then(|index| self.compiled.domain.priorities().get(index)).map(|name| &**name)
    }

    fn decision_slot(&self, decision: &Decision<'_>) -> Slot {
        let named = decision.binding.and_then(|binding| {
            self.compiled.each_rule().find(|(rule, _)| std::ptr::eq(*rule, binding.rule))
        });
        named.map_or(self.compiled.unnamed, |(_, compiled_rule)| compiled_rule.slot)
    }

    fn limit_view(&self, check: &StageCheck) -> Option<LimitView<'d>> {
        let rule: &Rule = self.compiled.domain.rules().get(check.rule as usize)?;
        Some(LimitView { rule, level: check.level? })
    }

    fn rate(&self, check: &StageCheck) -> Option<&'d str> {
        let rule: &Rule = self.compiled.domain.rules().get(check.rule as usize)?;
        rule.limit.allowance(check.allowance)?.rate.as_deref()
    }

    /// Returns the enforced rule with the smallest remaining part, preferring advertised rules. Ties go to
    /// the first in the file.
    fn least_remaining(&self, checks: &[StageCheck]) -> Option<(Slot, LimitView<'d>)> {
        let mut least: Option<(Slot, LimitView<'d>)> = None;
        for check in checks.iter().filter(|check| check.enforced) {
            let Some(view) = self.limit_view(check) else { continue };
            if least.as_ref().is_none_or(|(_, least)| view.has_less_remaining(least)) {
                least = Some((check.slot, view));
            }
        }
        least
    }
}

/// The stage of the rules that decide a refusal: rates precede concurrency rules, which are not evaluated
/// once a rate refuses.
pub(super) fn stage(checks: &[StageCheck]) -> CheckStage {
    let by_rate = checks.iter().any(|check| check.refuses() && !check.is_concurrency);
    if by_rate { CheckStage::Rates } else { CheckStage::Concurrency }
}

/// Returns the refusing rule with the longest wait, `None` (never) being the longest; and the wait after
/// which all would pass. For concurrency limits the wait is a hint, as the end of other requests is unknown.
fn longest_wait(checks: &[StageCheck], stage: CheckStage, now: Now) -> (Option<&StageCheck>, Option<Micros>) {
    let mut longest: Option<(&StageCheck, Option<Micros>)> = None;
    for check in checks.iter().filter(|check| check.refuses() && stage.includes_check(check)) {
        let wait = match stage {
            CheckStage::Rates => retry_after(check.outcome),
            // The end of a manual block is known.
            CheckStage::Concurrency if check.operator_block_remaining(now) > Micros::ZERO => {
                retry_after(check.outcome)
            }
            CheckStage::Concurrency => Some(hint::with_jitter(CONCURRENCY_RETRY_AFTER, check.key.high())),
        };
        if longest.is_none_or(|(_, longest)| (wait.is_none(), wait) > (longest.is_none(), longest)) {
            longest = Some((check, wait));
        }
    }
    // Rules that pass now may refuse when the others pass again.
    let later = checks.iter().map(|check| check.extended_wait).max().unwrap_or_default();
    longest.map_or((None, None), |(check, wait)| (Some(check), wait.map(|wait| wait.max(later))))
}

pub(super) fn retry_after(outcome: Outcome) -> Option<Micros> {
    match outcome {
        Outcome::Later(wait) => Some(wait),
        Outcome::Never | Outcome::Pass | Outcome::Queued(_) => None,
    }
}

/// The lease duration if no concurrency rule defines one.
const LEASE_TTL_DEFAULT: Duration = Duration::from_secs(60);

/// An approximate retry-after for a permit held by others.
const CONCURRENCY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Returns the shortfalls of a pending request, as an error. Refuses one that the pool sheds anyway.
#[cold]
#[inline(never)]
fn before_remote_check(
    context: &CheckContext<'_>,
    checks: &mut [StageCheck],
    sheds: Option<GateRefusal>,
) -> Result<Admission, Arc<Shortfalls>> {
    if let Some(refusal) = sheds {
        checks.iter_mut().filter(|check| check.refuses()).for_each(|check| check.outcome = Outcome::Pass);
        return Ok(Admission::Shed(refusal));
    }
    let (needs, waits): (Vec<_>, Vec<_>) =
        checks.iter().filter_map(|check| check.find_shortfall(context)).unzip();
    Err(Arc::new(Shortfalls { needs, patience: waits.into_iter().min().unwrap_or_default() }))
}

fn choose_intent(request: &Request<'_>) -> Intent {
    match request.op {
        Op::Peek => Intent::Peek,
        _ if request.may_wait => Intent::AdmitOrCheckRemotely,
        _ => Intent::Admit,
    }
}
