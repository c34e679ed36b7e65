//! Sums of what the decision threads have counted, for whoever looks. Nothing is counted here.

use std::sync::Arc;

use super::control::RuleName;
use super::counters::{Check, Count, Counters, SPANS_NANOS, Verdicts};
use super::decision::Verdict;
use super::slots::{Slot, Slots};

/// What has been counted since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Decisions that allowed.
    pub allowed: u64,
    /// Decisions that limited.
    pub limited: u64,
    /// Decisions that allowed after a wait.
    pub waited: u64,
    /// Decisions that denied.
    pub denied: u64,
    /// Decisions that shed.
    pub shed: u64,
    /// Requests for a domain that has no rules.
    pub unmatched_domain: u64,
    /// Requests that no rule matched.
    pub unmatched_rule: u64,
    /// Judgements that panicked.
    pub panics: u64,
    /// Keys dropped for lack of room while they still mattered.
    pub evictions: u64,
    /// By rule, in the order in which the rules were first seen; the last is all that have no slot of their own.
    pub rules: Vec<RuleTotals>,
    /// Decisions whose answer names no rule, by domain; the last is all that belong to no domain, whose name is empty.
    pub unnamed: Vec<(Box<str>, VerdictTotals)>,
    /// Decisions by priority; the last is all that have no slot of their own.
    pub priorities: Vec<(Box<str>, VerdictTotals)>,
    /// How long the decisions took that were timed.
    pub spans: SpanTotals,
}

/// What has been counted at one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTotals {
    /// The rule's domain.
    pub domain: Box<str>,
    /// The rule's name.
    pub rule: Box<str>,
    /// Decisions whose answer names it.
    pub verdicts: VerdictTotals,
    /// Requests that fitted, also where another rule refused them.
    pub pass: u64,
    /// Requests that fitted and left their key past the share at which its rule warns.
    pub near: u64,
    /// Requests that passed above the quota.
    pub over: u64,
    /// Requests refused.
    pub refuse: u64,
    /// Requests that it would have refused, had it been enforced.
    pub would_refuse: u64,
    /// How often it refused most callers right after a change.
    pub guard: u64,
}

/// Decisions by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictTotals {
    /// It may start.
    pub allow: u64,
    /// The caller is over a limit of his own.
    pub limit: u64,
    /// It may start after a wait.
    pub wait: u64,
    /// It is on a deny list.
    pub deny: u64,
    /// The host or the fleet is full.
    pub shed: u64,
}

/// Decisions by how long they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanTotals {
    /// How many took at most so many nanoseconds, and more than the entry before says; the last has no bound.
    pub counts: Vec<(Option<u64>, u64)>,
    /// All of them together, in nanoseconds.
    pub nanos: u64,
}

impl Totals {
    pub(super) fn sum(
        threads: &[Arc<Counters>],
        slots: &Slots,
        evictions: u64,
        guarded: &[(RuleName, u64)],
    ) -> Totals {
        let total = |count: fn(&Counters) -> &Count| threads.iter().map(|thread| count(thread).get()).sum();
        let rules = slots.rules().map(|(domain, rule, slot)| RuleTotals::sum(domain, rule, slot, threads));
        let unnamed = slots
            .domains()
            .map(|(name, slot)| (name.into(), of_verdicts(threads, |one| verdicts(one, slot))));
        let priorities = slots
            .priorities()
            .map(|(name, slot)| (name.into(), of_verdicts(threads, |one| one.priorities.get(slot.number()))));
        let mut rules: Vec<RuleTotals> = rules.collect();
        if let Some(others) = rules.last_mut() {
            others.add(slots.gone());
        }
        for (name, count) in guarded {
            let is = |rule: &RuleTotals| *rule.domain == *name.domain && *rule.rule == *name.rule;
            let place = rules.iter().position(is).unwrap_or(rules.len().saturating_sub(1));
            if let Some(rule) = rules.get_mut(place) {
                rule.guard += count;
            }
        }
        let mut totals = Totals {
            rules,
            unnamed: unnamed.collect(),
            priorities: priorities.collect(),
            unmatched_domain: total(|thread| &thread.unmatched_domain),
            unmatched_rule: total(|thread| &thread.unmatched_rule),
            panics: total(|thread| &thread.panics),
            evictions,
            spans: SpanTotals::sum(threads),
            ..Totals::default()
        };
        let every = totals.rules.iter().map(|rule| rule.verdicts);
        for verdicts in every.chain(totals.unnamed.iter().map(|(_, verdicts)| *verdicts)) {
            totals.allowed += verdicts.allow;
            totals.limited += verdicts.limit;
            totals.waited += verdicts.wait;
            totals.denied += verdicts.deny;
            totals.shed += verdicts.shed;
        }
        totals
    }
}

impl VerdictTotals {
    /// Both together.
    #[must_use]
    pub fn plus(self, more: &VerdictTotals) -> VerdictTotals {
        VerdictTotals {
            allow: self.allow + more.allow,
            limit: self.limit + more.limit,
            wait: self.wait + more.wait,
            deny: self.deny + more.deny,
            shed: self.shed + more.shed,
        }
    }
}

impl RuleTotals {
    /// Both together, under the name of this one.
    pub(super) fn add(&mut self, more: &RuleTotals) {
        self.verdicts = self.verdicts.plus(&more.verdicts);
        self.pass += more.pass;
        self.near += more.near;
        self.over += more.over;
        self.refuse += more.refuse;
        self.would_refuse += more.would_refuse;
        self.guard += more.guard;
    }

    pub(super) fn sum(domain: &str, rule: &str, slot: Slot, threads: &[Arc<Counters>]) -> RuleTotals {
        let total = |check: Check| {
            let counts = threads.iter().filter_map(|thread| thread.rules.get(slot.number()));
            counts.map(|counts| counts.get(check)).sum()
        };
        RuleTotals {
            domain: domain.into(),
            rule: rule.into(),
            verdicts: of_verdicts(threads, |one| verdicts(one, slot)),
            pass: total(Check::Pass),
            near: total(Check::Near),
            over: total(Check::Over),
            refuse: total(Check::Refuse),
            would_refuse: total(Check::WouldRefuse),
            guard: 0,
        }
    }
}

impl SpanTotals {
    fn sum(threads: &[Arc<Counters>]) -> SpanTotals {
        let bounds = SPANS_NANOS.iter().copied().map(Some).chain([None]);
        let count = |place: usize| {
            threads.iter().filter_map(|thread| thread.spans.counts.get(place)).map(Count::get).sum()
        };
        SpanTotals {
            counts: bounds.enumerate().map(|(place, bound)| (bound, count(place))).collect(),
            nanos: threads.iter().map(|thread| thread.spans.nanos.get()).sum(),
        }
    }
}

fn verdicts(counters: &Counters, slot: Slot) -> Option<&Verdicts> {
    counters.rules.get(slot.number()).map(|counts| &counts.verdicts)
}

fn of_verdicts(
    threads: &[Arc<Counters>],
    of: impl Fn(&Counters) -> Option<&Verdicts> + Copy,
) -> VerdictTotals {
    let total = |verdict: Verdict| {
        threads.iter().filter_map(|thread| of(thread)).map(|verdicts| verdicts.get(verdict)).sum()
    };
    VerdictTotals {
        allow: total(Verdict::Allow),
        limit: total(Verdict::Limit),
        wait: total(Verdict::Wait),
        deny: total(Verdict::Deny),
        shed: total(Verdict::Shed),
    }
}
