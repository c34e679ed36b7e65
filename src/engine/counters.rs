//! Counters: plain arrays, one set per decision thread, which alone writes it. `totals.rs` sums them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::decision::Unmatched;
use super::slots::{EVERY_SLOT, PRIORITY_SLOTS, Slot};
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
    checks: [Count; CHECKS],
}

#[derive(Debug, Default)]
pub(super) struct Verdicts([Count; Verdict::ALL.len()]);

#[derive(Debug, Default)]
pub(super) struct DurationHistogram {
    /// Indexed by the first bound of [`SPANS_NANOS`] that is not exceeded; the last counter is beyond all.
    pub(super) counts: [Count; SPANS_NANOS.len() + 1],
    pub(super) nanos: Count,
}

/// The result of one rule for one request.
#[derive(Clone, Copy, Debug)]
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
        let place = SPANS_NANOS.iter().position(|most| nanos <= *most).unwrap_or(SPANS_NANOS.len());
        if let Some(count) = self.spans.counts.get(place) {
            count.add(decisions);
        }
        self.spans.nanos.add(nanos.saturating_mul(decisions));
    }
}

const CHECKS: usize = CheckResult::WouldRefuse as usize + 1;

/// Histogram bounds: 1, 2, 5 microseconds and so on to 0.1 s.
pub(super) const SPANS_NANOS: [u64; 16] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
];
