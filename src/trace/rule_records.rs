//! Records of the callers of each rule, over every reload. No decision depends on them.

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashTable;

use super::spread::{DemandByCaller, KEPT_MAX, SampledCallers, window_nanos};
use crate::clock::Timestamp;
use crate::engine::{Decision, Request};
use crate::rules::{Domain, Rule};

/// The records of all rules that were ever in force, by name: a rule keeps its record over every reload.
#[derive(Debug, Default)]
pub(crate) struct RuleRecords {
    /// For each domain in force the indexes of its rules' records, by rule number.
    in_force: HashMap<Box<str>, Vec<usize>>,
    by_name: HashMap<(Box<str>, Box<str>), usize>,
    records: Vec<RuleRecord>,
    /// Whether to collect the data of a report.
    detailed: bool,
    /// Entries of all rules together, each with a bound.
    callers: usize,
    refused: usize,
    demands: usize,
}

#[derive(Debug, Default)]
pub(crate) struct RuleRecord {
    pub(crate) callers: CallerSet,
    /// The callers that the rule refused or would have; empty without a report.
    pub(crate) refused: CallerSet,
    /// `None` without a report, and for rules past the first `DETAILED_MAX`.
    pub(super) details: Option<Box<RuleDetails>>,
}

#[derive(Debug)]
pub(super) struct RuleDetails {
    pub(super) demand: DemandByCaller,
    pub(super) most_refused: MostRefused,
}

impl RuleRecords {
    pub(super) fn new(detailed: bool) -> RuleRecords {
        RuleRecords { detailed, ..RuleRecords::default() }
    }

    /// Records the numbering of the rules in force.
    pub(super) fn number(&mut self, rules: &[Arc<Domain>]) {
        self.in_force.clear();
        for domain in rules {
            let indices = domain.rules().iter().map(|rule| self.index(domain.name(), rule)).collect();
            self.in_force.insert(domain.name().into(), indices);
        }
    }

    /// Returns the index of a rule's record. Demand in another window starts anew, as windows are not comparable.
    fn index(&mut self, domain: &str, rule: &Rule) -> usize {
        let (next, window) = (self.records.len(), window_nanos(rule));
        let index = *self.by_name.entry((domain.into(), rule.name.clone())).or_insert(next);
        if index == next {
            let details = (self.detailed && next < DETAILED_MAX).then(|| {
                let (demand, most_refused) = (DemandByCaller::new(window), MostRefused::default());
                Box::new(RuleDetails { demand, most_refused })
            });
            self.records.push(RuleRecord { details, ..RuleRecord::default() });
        } else if let Some(details) = self.records.get_mut(index).and_then(|record| record.details.as_mut())
            && details.demand.window_nanos != window
        {
            self.demands -= details.demand.callers.len();
            details.demand = DemandByCaller::new(window);
        }
        index
    }

    /// Records the caller of a request under each rule that checked it.
    pub(super) fn note(
        &mut self,
        rules: &[Arc<Domain>],
        request: &Request<'_>,
        decision: &Decision<'_>,
        at: Timestamp,
    ) {
        let indices = self.in_force.get(request.domain).map(Vec::as_slice).unwrap_or_default();
        for check in decision.checks() {
            let index = indices.get(check.rule as usize);
            let Some(record) = index.and_then(|index| self.records.get_mut(*index)) else { continue };
            self.callers += usize::from(record.callers.note(check.key, self.callers < FINGERPRINTS_MAX));
            if !self.detailed {
                continue;
            }
            if !check.passes {
                self.refused += usize::from(record.refused.note(check.key, self.refused < FINGERPRINTS_MAX));
            }
            let Some(details) = &mut record.details else { continue };
            self.demands += usize::from(details.demand.note(check.key, check.cost, at));
            let domain = || rules.iter().find(|domain| domain.name() == request.domain);
            if !check.passes
                && let Some(domain) = domain()
            {
                details.most_refused.note(check.key, || caller_text(domain, check.rule, request));
            }
        }
        if self.demands > KEPT_MAX {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        let details = self.records.iter_mut().filter_map(|record| record.details.as_mut());
        let most = details.map(|details| &mut details.demand.callers).max_by_key(|callers| callers.len());
        self.demands -= most.map_or(0, SampledCallers::halve);
    }

    /// Returns the record of a rule that was ever in force.
    pub(crate) fn find(&self, domain: &str, rule: &str) -> Option<&RuleRecord> {
        self.records.get(*self.by_name.get(&(domain.into(), rule.into()))?)
    }
}

/// Fingerprints over all rules: 9 bytes each in tables that may be half empty, about 300 MB.
const FINGERPRINTS_MAX: usize = 16_000_000;

/// Rules with details: as many as have counts of their own.
const DETAILED_MAX: usize = 512;

/// The fingerprints of callers, or of other values.
#[derive(Debug, Default)]
pub struct CallerSet {
    fingerprints: HashTable<u64>,
    /// Set when a new fingerprint was dropped for lack of room.
    more: bool,
}

impl CallerSet {
    /// Records a fingerprint; returns whether it was added.
    pub fn note(&mut self, fingerprint: u64, has_room: bool) -> bool {
        // A fingerprint is a keyed hash already.
        if !has_room {
            self.more |= self.fingerprints.find(fingerprint, |known| *known == fingerprint).is_none();
            return false;
        }
        let before = self.fingerprints.len();
        self.fingerprints
            .entry(fingerprint, |known| *known == fingerprint, |known| *known)
            .or_insert(fingerprint);
        self.fingerprints.len() > before
    }

    /// Returns the number of fingerprints, and whether some were not counted for lack of room.
    pub fn count(&self) -> (u64, bool) {
        (self.fingerprints.len() as u64, self.more)
    }

    /// Formats the count for a table: `1 204`, or `1 204+` if some were not counted.
    pub(super) fn shown(&self, format: fn(u64) -> String) -> String {
        let (count, more) = self.count();
        format(count) + if more { "+" } else { "" }
    }
}

/// The callers that one rule refused, or would have refused.
#[derive(Debug, Default)]
pub(super) struct MostRefused {
    by_key: HashMap<u64, RefusedCaller>,
    /// The largest count that was dropped.
    evicted_max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusedCaller {
    /// The values of the rule's key, as in the trace.
    pub(super) text: Box<str>,
    /// An upper bound of its refusals.
    pub(super) count: u64,
    /// The most by which `count` is too large.
    pub(super) error: u64,
}

impl MostRefused {
    /// Returns the callers refused most, in descending order.
    pub(super) fn sorted(&self) -> Vec<RefusedCaller> {
        let mut all: Vec<&RefusedCaller> = self.by_key.values().collect();
        all.sort_by(|one, other| {
            (other.count, one.error, &one.text).cmp(&(one.count, other.error, &other.text))
        });
        all.into_iter().take(SHOWN_MAX).cloned().collect()
    }

    pub(super) fn note(&mut self, key: u64, text: impl FnOnce() -> Box<str>) {
        if let Some(caller) = self.by_key.get_mut(&key) {
            caller.count += 1;
            return;
        }
        if self.by_key.len() >= CALLERS_KEPT_MAX {
            self.drop_the_lesser_half();
        }
        let caller = RefusedCaller { text: text(), count: self.evicted_max + 1, error: self.evicted_max };
        self.by_key.insert(key, caller);
    }

    fn drop_the_lesser_half(&mut self) {
        let mut counts: Vec<(u64, u64)> =
            self.by_key.iter().map(|(key, caller)| (caller.count, *key)).collect();
        counts.sort_unstable();
        counts.truncate(counts.len() / 2);
        for (count, key) in counts {
            self.evicted_max = self.evicted_max.max(count);
            self.by_key.remove(&key);
        }
    }
}

/// The part of a request that identifies its caller under a rule; empty if the rule counts all together.
pub(super) fn caller_text(domain: &Domain, number: u32, request: &Request<'_>) -> Box<str> {
    let (attributes, tree) = (request.descriptors.attributes, domain.tree());
    let value = |name: &str| {
        let found = attributes.iter().find(|(attribute, value)| *attribute == name && !value.is_empty());
        found.map(|(_, value)| *value)
    };
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        let apart = if text.is_empty() { "" } else { " " };
        text.push_str(apart);
        text.push_str(name);
        text.push('=');
        text.push_str(value);
    };
    // A node of the tree counts by the descriptor that matched it.
    let found = |descriptor: &&[(&str, &str)]| tree.find(descriptor).is_some_and(|hit| hit.rule == number);
    let descriptor = request.descriptors.iter().find(found).unwrap_or_default();
    descriptor.iter().for_each(|(name, value)| add(name, value));
    let mut transformed = String::new();
    let key = domain.rules().get(number as usize).map(|rule| &*rule.key).unwrap_or_default();
    let of_key = key.iter().filter_map(|part| Some((part, value(&part.attribute)?)));
    for (part, value) in of_key {
        transformed.clear();
        part.transform.push(value, &mut transformed);
        add(&part.attribute, &transformed);
    }
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text.into()
}

const SHOWN_MAX: usize = 20;

/// Callers kept per rule: any that causes more than one in 512 of the rule's refusals is kept. With texts
/// about 30 MB for 512 rules with thousands of callers each.
const CALLERS_KEPT_MAX: usize = 512;

/// Enough for an address and an account; callers control the length of values.
const TEXT_BYTES_MAX: usize = 120;
