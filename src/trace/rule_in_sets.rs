//! The data of a rule for the report: its quota, counts over time and callers in each of the rule sets.

use std::collections::{BTreeMap, HashSet};

use super::comparison::NUMBERS;
use super::report::ReportSet;
use super::rule_records::RuleRecord;
use super::spread::CallerDistribution;
use super::summary::rules;
use crate::engine::RuleTotals;
use crate::page::bar_edges;
use crate::rules::Rule;

/// A rule by its name, in each of the sets.
pub(super) struct RuleInSets<'s> {
    pub(super) domain: &'s str,
    pub(super) rule: &'s str,
    pub(super) sets: Vec<RuleInSet<'s>>,
}

/// A rule in one set.
pub(super) struct RuleInSet<'s> {
    pub(super) set: &'s ReportSet<'s>,
    /// `None`: the set has no such rule.
    pub(super) totals: Option<&'s RuleTotals>,
    /// `None`: no file in force has the rule.
    pub(super) rule: Option<&'s Rule>,
    /// Counts per step, as in the summary.
    pub(super) steps: Vec<[u64; 3]>,
    pub(super) record: Option<&'s RuleRecord>,
    pub(super) spread: Option<RuleDemand>,
}

/// The demand of the callers of a rule, and the rule's limit.
pub(super) struct RuleDemand {
    pub(super) shape: CallerDistribution,
    /// The number of callers by bar of their busiest window.
    pub(super) bars: BTreeMap<(u64, u64), u64>,
    pub(super) limit: u64,
}

/// Returns every rule of any set: those of the first in file order, then those that only another has.
pub(super) fn rules_in_sets<'s>(sets: &[&'s ReportSet<'s>]) -> Vec<RuleInSets<'s>> {
    let mut known = HashSet::new();
    let all = sets.iter().flat_map(|set| rules(&set.totals));
    let rule = |totals: &'s RuleTotals| RuleInSets {
        domain: &totals.domain,
        rule: &totals.rule,
        sets: sets.iter().map(|set| RuleInSet::new(set, &totals.domain, &totals.rule)).collect(),
    };
    all.filter(|totals| known.insert((&totals.domain, &totals.rule))).map(rule).collect()
}

impl RuleInSets<'_> {
    pub(super) fn has_counts(&self) -> bool {
        let has_counts = |rule: &RuleTotals| NUMBERS.iter().any(|number| number(rule) > 0);
        self.sets.iter().filter_map(|set| set.totals).any(has_counts)
    }
}

impl<'s> RuleInSet<'s> {
    fn new(set: &'s ReportSet<'s>, domain: &str, name: &str) -> RuleInSet<'s> {
        let totals = rules(&set.totals).find(|totals| *totals.domain == *domain && *totals.rule == *name);
        let rules = set.player.rules.iter().find(|known| known.name() == domain);
        let rule = rules.and_then(|domain| domain.rules().iter().find(|known| *known.name == *name));
        let record = totals.and_then(|_| set.player.records.find(domain, name));
        let spread = || {
            let limit = rule?.limit.quota()?.limit().into();
            let shape = record?.details.as_ref()?.demand.shape()?;
            let mut bars = BTreeMap::new();
            shape.busiest.iter().for_each(|most| *bars.entry(bar_edges(*most)).or_default() += 1);
            Some(RuleDemand { shape, bars, limit })
        };
        RuleInSet {
            set,
            totals,
            rule,
            steps: totals.map(|_| set.course.of(domain, name)).unwrap_or_default(),
            record,
            spread: spread(),
        }
    }
}
