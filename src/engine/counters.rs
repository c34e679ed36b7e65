//! What is counted: plain arrays, one for each decision thread, summed when somebody looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::control::RuleName;
use super::decision::{Unmatched, Verdict};

/// The counts of one decision thread. It alone writes; whoever sums reads.
#[derive(Debug)]
pub(super) struct Counters {
    rules: Box<[RuleCounts]>,
    allowed: Count,
    limited: Count,
    waited: Count,
    denied: Count,
    shed: Count,
    unmatched_domain: Count,
    unmatched_rule: Count,
    panics: Count,
}

/// The counts of one rule.
#[derive(Debug, Default)]
struct RuleCounts {
    pass: Count,
    near: Count,
    over: Count,
    refuse: Count,
    would_refuse: Count,
    candidate_pass: Count,
    candidate_refuse: Count,
}

/// What happened to a request at one rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Check {
    Pass,
    /// Past the share at which to warn.
    Near,
    /// Above the quota.
    Over,
    Refuse,
    WouldRefuse,
    CandidatePass,
    CandidateRefuse,
}

/// A number with one writer: to add is a load and a store, not a locked instruction.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    #[inline]
    fn add_one(&self) {
        self.0.store(self.get().wrapping_add(1), Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(super) fn new() -> Counters {
        Counters {
            rules: std::iter::repeat_with(RuleCounts::default).take(SLOTS).collect(),
            allowed: Count::default(),
            limited: Count::default(),
            waited: Count::default(),
            denied: Count::default(),
            shed: Count::default(),
            unmatched_domain: Count::default(),
            unmatched_rule: Count::default(),
            panics: Count::default(),
        }
    }

    #[inline]
    pub(super) fn check(&self, slot: Slot, check: Check) {
        let Some(counts) = self.rules.get(slot.0) else { return };
        match check {
            Check::Pass => counts.pass.add_one(),
            Check::Near => counts.near.add_one(),
            Check::Over => counts.over.add_one(),
            Check::CandidatePass => counts.candidate_pass.add_one(),
            Check::CandidateRefuse => counts.candidate_refuse.add_one(),
            Check::Refuse => counts.refuse.add_one(),
            Check::WouldRefuse => counts.would_refuse.add_one(),
        }
    }

    /// Counts a verdict and returns how many of it there were.
    #[inline]
    pub(super) fn verdict(&self, verdict: Verdict) -> u64 {
        let count = match verdict {
            Verdict::Allow => &self.allowed,
            Verdict::Limit => &self.limited,
            Verdict::Wait => &self.waited,
            Verdict::Deny => &self.denied,
            Verdict::Shed => &self.shed,
        };
        count.add_one();
        count.get()
    }

    pub(super) fn unmatched(&self, reason: Unmatched) {
        match reason {
            Unmatched::Domain => self.unmatched_domain.add_one(),
            Unmatched::Rule => self.unmatched_rule.add_one(),
        }
    }

    pub(super) fn panicked(&self) {
        self.panics.add_one();
    }
}

/// Where a rule's counts stand in every thread's array. It stays over a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

impl Slot {
    /// Its place, below [`SLOTS`].
    pub(super) fn number(self) -> usize {
        self.0
    }
}

/// Gives each rule its slot, by name. Rules past the bound share the last one.
#[derive(Debug, Default)]
pub(super) struct Slots {
    by_name: HashMap<(Box<str>, Box<str>), usize>,
    names: Vec<(Box<str>, Box<str>)>,
}

impl Slots {
    /// The slot of a rule, if it was ever seen.
    pub(super) fn find(&self, domain: &str, rule: &str) -> Option<Slot> {
        self.by_name.get(&(domain.into(), rule.into())).copied().map(Slot)
    }

    /// Where a rule is counted, also one that has no slot of its own.
    fn place_of(&self, domain: &str, rule: &str) -> usize {
        self.find(domain, rule).map_or(NAMED_RULES_MAX, Slot::number)
    }

    pub(super) fn of(&mut self, domain: &str, rule: &str) -> Slot {
        let name: (Box<str>, Box<str>) = (domain.into(), rule.into());
        if let Some(slot) = self.by_name.get(&name) {
            return Slot(*slot);
        }
        if self.names.len() == NAMED_RULES_MAX {
            return Slot(NAMED_RULES_MAX);
        }
        self.names.push(name.clone());
        self.by_name.insert(name, self.names.len() - 1);
        Slot(self.names.len() - 1)
    }
}

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
}

/// What has been counted at one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTotals {
    /// The rule's domain.
    pub domain: Box<str>,
    /// The rule's name.
    pub rule: Box<str>,
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
    /// Requests that would have fitted its candidate.
    pub candidate_pass: u64,
    /// Requests that its candidate would have refused.
    pub candidate_refuse: u64,
    /// How often it refused most callers right after a change.
    pub guard: u64,
}

impl Totals {
    pub(super) fn sum(
        threads: &[Arc<Counters>],
        slots: &Slots,
        evictions: u64,
        guarded: &[(RuleName, u64)],
    ) -> Totals {
        let guard = |slot: usize| {
            let at_slot = guarded.iter().filter(|(name, _)| slots.place_of(&name.domain, &name.rule) == slot);
            at_slot.map(|(_, count)| *count).sum()
        };
        let total = |count: fn(&Counters) -> &Count| threads.iter().map(|thread| count(thread).get()).sum();
        let at_slot = |slot: usize, count: fn(&RuleCounts) -> &Count| {
            threads.iter().filter_map(|thread| thread.rules.get(slot)).map(|counts| count(counts).get()).sum()
        };
        let other = ("".into(), "other".into());
        let names = slots.names.iter().enumerate().chain([(NAMED_RULES_MAX, &other)]);
        let rules = names.map(|(slot, (domain, rule))| RuleTotals {
            domain: domain.clone(),
            rule: rule.clone(),
            pass: at_slot(slot, |counts| &counts.pass),
            near: at_slot(slot, |counts| &counts.near),
            over: at_slot(slot, |counts| &counts.over),
            candidate_pass: at_slot(slot, |counts| &counts.candidate_pass),
            candidate_refuse: at_slot(slot, |counts| &counts.candidate_refuse),
            refuse: at_slot(slot, |counts| &counts.refuse),
            would_refuse: at_slot(slot, |counts| &counts.would_refuse),
            guard: guard(slot),
        });
        Totals {
            rules: rules.collect(),
            allowed: total(|thread| &thread.allowed),
            limited: total(|thread| &thread.limited),
            waited: total(|thread| &thread.waited),
            denied: total(|thread| &thread.denied),
            shed: total(|thread| &thread.shed),
            unmatched_domain: total(|thread| &thread.unmatched_domain),
            unmatched_rule: total(|thread| &thread.unmatched_rule),
            panics: total(|thread| &thread.panics),
            evictions,
        }
    }
}

/// Rules that are counted by name: more would make a scrape larger than anybody reads.
const NAMED_RULES_MAX: usize = 512;

/// One for each named rule and one for the rest.
pub(super) const SLOTS: usize = NAMED_RULES_MAX + 1;
