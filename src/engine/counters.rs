//! Counters: plain arrays, one set per decision thread, which alone writes it, and their sums for readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use strum::EnumCount;

use super::control::RuleName;
use super::decision::Unmatched;
use super::slots::{EVERY_SLOT, PRIORITY_SLOTS, Slot, Slots};
use crate::clock::NANOS_PER_MICRO;
use crate::terms::Verdict;

/// The counters of one decision thread. Only that thread writes, except to slots that no rule set in use has.
#[derive(Debug)]
pub(super) struct ThreadCounters {
    pub(super) rules: Box<[RuleCounts]>,
    pub(super) priorities: Box<[Verdicts]>,
    pub(super) unmatched_domain: Count,
    pub(super) unmatched_rule: Count,
    pub(super) panics: Count,
    pub(super) spans: DurationHistogram,
}

/// The counters of one rule, or of decisions that name no rule.
#[derive(Debug, Default)]
pub(super) struct RuleCounts {
    pub(super) verdicts: Verdicts,
    /// Indexed by [`CheckResult`].
    checks: [Count; CheckResult::COUNT],
}

#[derive(Debug, Default)]
pub(super) struct Verdicts([Count; Verdict::COUNT]);

#[derive(Debug, Default)]
pub(super) struct DurationHistogram {
    /// Indexed by the first bound of [`SPANS_MICROS`] that is not exceeded; the last counter is beyond all.
    pub(super) counts: [Count; SPANS_MICROS.len() + 1],
    pub(super) nanos: Count,
}

#[derive(Clone, Copy, Debug, strum::EnumCount)]
pub(super) enum CheckResult {
    Pass,
    /// Past the warning threshold.
    Near,
    /// Above the quota.
    Over,
    Refuse,
    WouldRefuse,
}

/// A counter with one writer at a time: an addition is a load and a store, not a locked instruction.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    fn add_one(&self) {
        self.add(1);
    }

    #[inline]
    fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl RuleCounts {
    pub(super) fn get(&self, check: CheckResult) -> u64 {
        self.checks.get(check as usize).map_or(0, Count::get)
    }
}

impl Verdicts {
    pub(super) fn get(&self, verdict: Verdict) -> u64 {
        self.0.get(verdict as usize).map_or(0, Count::get)
    }

    #[inline]
    fn count(&self, verdict: Verdict) -> u64 {
        let Some(count) = self.0.get(verdict as usize) else { return 0 };
        count.add_one();
        count.get()
    }
}

impl ThreadCounters {
    pub(super) fn new() -> ThreadCounters {
        ThreadCounters {
            rules: std::iter::repeat_with(RuleCounts::default).take(EVERY_SLOT).collect(),
            priorities: std::iter::repeat_with(Verdicts::default).take(PRIORITY_SLOTS).collect(),
            unmatched_domain: Count::default(),
            unmatched_rule: Count::default(),
            panics: Count::default(),
            spans: DurationHistogram::default(),
        }
    }

    /// Resets a slot. Call it only while no thread uses a rule set with this slot, as such a thread writes
    /// it.
    pub(super) fn clear(&self, slot: Slot) {
        if let Some(counts) = self.rules.get(slot.number()) {
            counts.checks.iter().chain(&counts.verdicts.0).for_each(Count::clear);
        }
    }

    #[inline]
    pub(super) fn count_check(&self, slot: Slot, check: CheckResult) {
        if let Some(count) = self.rules.get(slot.number()).and_then(|rule| rule.checks.get(check as usize)) {
            count.add_one();
        }
    }

    /// Counts a verdict at the rule that the answer names, and returns the count.
    #[inline]
    pub(super) fn count_decision(&self, slot: Slot, verdict: Verdict) -> u64 {
        self.rules.get(slot.number()).map_or(0, |counts| counts.verdicts.count(verdict))
    }

    pub(super) fn count_priority(&self, slot: Slot, verdict: Verdict) {
        if let Some(verdicts) = self.priorities.get(slot.number()) {
            verdicts.count(verdict);
        }
    }

    pub(super) fn count_unmatched(&self, reason: Unmatched) {
        match reason {
            Unmatched::Domain => self.unmatched_domain.add_one(),
            Unmatched::Rule => self.unmatched_rule.add_one(),
        }
    }

    pub(super) fn count_panic(&self) {
        self.panics.add_one();
    }

    /// Counts `decisions` that took `nanos` each.
    pub(super) fn record_duration(&self, nanos: u64, decisions: u64) {
        let index = SPANS_MICROS.partition_point(|most| nanos > most * NANOS_PER_MICRO);
        if let Some(count) = self.spans.counts.get(index) {
            count.add(decisions);
        }
        self.spans.nanos.add(nanos.saturating_mul(decisions));
    }
}

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub verdicts: VerdictTotals,
    pub unmatched_domain: u64,
    pub unmatched_rule: u64,
    pub panics: u64,
    /// Evicted keys whose state was not fresh.
    pub evictions: u64,
    /// By rule, in the order of first use; the last entry sums rules without a slot.
    pub rules: Vec<RuleTotals>,
    /// Decisions whose reply names no rule, by domain; the last entry, with an empty name, is for no domain.
    pub unnamed: Vec<(Box<str>, VerdictTotals)>,
    /// Decisions by priority; the last entry sums priorities without a slot.
    pub priorities: Vec<(Box<str>, VerdictTotals)>,
    pub spans: SpanTotals,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleTotals {
    pub domain: Box<str>,
    pub rule: Box<str>,
    /// Decisions whose reply names the rule.
    #[serde(rename = "decisions")]
    pub verdicts: VerdictTotals,
    /// Requests within the quota, also where another rule refused them.
    pub pass: u64,
    /// Requests within the quota that took their key past the rule's warning share.
    pub near: u64,
    /// Requests allowed above the quota.
    pub over: u64,
    pub refuse: u64,
    /// Requests that it would have refused if enforced.
    pub would_refuse: u64,
    /// How often it refused most callers right after a change.
    #[serde(skip)]
    pub guard: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerdictTotals {
    pub allow: u64,
    pub limit: u64,
    pub wait: u64,
    pub deny: u64,
    /// Refused for lack of capacity of the host or the fleet.
    pub shed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanTotals {
    /// Upper bounds in nanoseconds and the decisions above the previous bound; the last has no bound.
    pub counts: Vec<(Option<u64>, u64)>,
    /// The sum of all durations in nanoseconds.
    pub nanos: u64,
}

impl Totals {
    pub(super) fn sum(
        threads: &[Arc<ThreadCounters>],
        slots: &Slots,
        evictions: u64,
        guarded: &[(RuleName, u64)],
    ) -> Totals {
        let total =
            |count: fn(&ThreadCounters) -> &Count| threads.iter().map(|thread| count(thread).get()).sum();
        let rules = slots.rules().map(|(domain, rule, slot)| RuleTotals::sum(domain, rule, slot, threads));
        let unnamed = slots
            .domains()
            .map(|(name, slot)| (name.into(), sum_verdicts(threads, |one| verdicts(one, slot))));
        let priorities = slots.priorities().map(|(name, slot)| {
            (name.into(), sum_verdicts(threads, |one| one.priorities.get(slot.number())))
        });
        let mut rules: Vec<RuleTotals> = rules.collect();
        if let Some(others) = rules.last_mut() {
            others.add(&slots.removed);
        }
        for (name, count) in guarded {
            let is = |rule: &RuleTotals| *rule.domain == *name.domain && *rule.rule == *name.rule;
            let index = rules.iter().position(is).unwrap_or(rules.len().saturating_sub(1));
            if let Some(rule) = rules.get_mut(index) {
                rule.guard += count;
            }
        }
        let unnamed: Vec<_> = unnamed.collect();
        let all = rules.iter().map(|rule| &rule.verdicts).chain(unnamed.iter().map(|(_, verdicts)| verdicts));
        Totals {
            verdicts: all.fold(VerdictTotals::default(), VerdictTotals::plus),
            rules,
            unnamed,
            priorities: priorities.collect(),
            unmatched_domain: total(|thread| &thread.unmatched_domain),
            unmatched_rule: total(|thread| &thread.unmatched_rule),
            panics: total(|thread| &thread.panics),
            evictions,
            spans: SpanTotals::sum(threads),
        }
    }
}

impl VerdictTotals {
    pub fn sum(&self) -> u64 {
        self.allow + self.limit + self.wait + self.deny + self.shed
    }

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
    /// Returns the requests that the rule let pass, refused and would refuse.
    pub fn outcomes(&self) -> [u64; 3] {
        [self.pass + self.near + self.over, self.refuse, self.would_refuse]
    }

    /// Adds counts and keeps the name of this rule.
    pub(super) fn add(&mut self, more: &RuleTotals) {
        self.verdicts = self.verdicts.plus(&more.verdicts);
        self.pass += more.pass;
        self.near += more.near;
        self.over += more.over;
        self.refuse += more.refuse;
        self.would_refuse += more.would_refuse;
        self.guard += more.guard;
    }

    pub(super) fn sum(domain: &str, rule: &str, slot: Slot, threads: &[Arc<ThreadCounters>]) -> RuleTotals {
        let total = |check: CheckResult| {
            let counts = threads.iter().filter_map(|thread| thread.rules.get(slot.number()));
            counts.map(|counts| counts.get(check)).sum()
        };
        RuleTotals {
            domain: domain.into(),
            rule: rule.into(),
            verdicts: sum_verdicts(threads, |one| verdicts(one, slot)),
            pass: total(CheckResult::Pass),
            near: total(CheckResult::Near),
            over: total(CheckResult::Over),
            refuse: total(CheckResult::Refuse),
            would_refuse: total(CheckResult::WouldRefuse),
            guard: 0,
        }
    }
}

impl SpanTotals {
    fn sum(threads: &[Arc<ThreadCounters>]) -> SpanTotals {
        let bounds = SPANS_MICROS.iter().map(|most| Some(most * NANOS_PER_MICRO)).chain([None]);
        let count = |index: usize| {
            threads.iter().filter_map(|thread| thread.spans.counts.get(index)).map(Count::get).sum()
        };
        SpanTotals {
            counts: bounds.enumerate().map(|(index, bound)| (bound, count(index))).collect(),
            nanos: threads.iter().map(|thread| thread.spans.nanos.get()).sum(),
        }
    }
}

fn verdicts(counters: &ThreadCounters, slot: Slot) -> Option<&Verdicts> {
    counters.rules.get(slot.number()).map(|counts| &counts.verdicts)
}

fn sum_verdicts(
    threads: &[Arc<ThreadCounters>],
    of: impl Fn(&ThreadCounters) -> Option<&Verdicts> + Copy,
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

/// Histogram bounds: 1, 2, 5 microseconds and so on to 0.1 s.
const SPANS_MICROS: [u64; 16] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];
