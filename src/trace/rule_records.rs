//! Records of the callers of each rule, over every reload. No decision depends on them.

use std::collections::HashMap;
use std::sync::Arc;

use super::callers::CallerSet;
use super::refused::{MostRefused, RefusedCaller, text};
use super::spread::{DemandByCaller, KEPT_MAX, window_nanos};
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

#[derive(Debug, Default)]
pub(super) struct RuleDetails {
    pub(super) demand: DemandByCaller,
    most_refused: MostRefused,
}

impl RuleRecords {
    pub(super) fn new(detailed: bool) -> RuleRecords {
        RuleRecords { detailed, ..RuleRecords::default() }
    }

    /// Records the numbering of the rules in force.
    pub(super) fn number(&mut self, rules: &[Arc<Domain>]) {
        self.in_force.clear();
        for domain in rules {
            let places = domain.rules().iter().map(|rule| self.place(domain.name(), rule)).collect();
            self.in_force.insert(domain.name().into(), places);
        }
    }

    /// Returns the index of a rule's record. Demand in another window starts anew, as windows are not comparable.
    fn place(&mut self, domain: &str, rule: &Rule) -> usize {
        let next = self.records.len();
        let place = *self.by_name.entry((domain.into(), rule.name.clone())).or_insert(next);
        if place == next {
            let details = (self.detailed && next < DETAILED_MAX).then(Box::default);
            self.records.push(RuleRecord { details, ..RuleRecord::default() });
        }
        let details = self.records.get_mut(place).and_then(|record| record.details.as_mut());
        if let Some(RuleDetails { demand, .. }) = details.map(|details| &mut **details) {
            let kept = demand.len();
            if demand.restart(window_nanos(rule)) {
                self.demands -= kept;
            }
        }
        place
    }

    /// Records the caller of a request under each rule that checked it.
    pub(super) fn note(
        &mut self,
        rules: &[Arc<Domain>],
        request: &Request<'_>,
        decision: &Decision<'_>,
        at: Timestamp,
    ) {
        let places = self.in_force.get(request.domain).map(Vec::as_slice).unwrap_or_default();
        for check in decision.checks() {
            let place = places.get(check.rule as usize);
            let Some(record) = place.and_then(|place| self.records.get_mut(*place)) else { continue };
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
                details.most_refused.note(check.key, || text(domain, check.rule, request));
            }
        }
        if self.demands > KEPT_MAX {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        let details = self.records.iter_mut().filter_map(|record| record.details.as_mut());
        if let Some(most) = details.max_by_key(|details| details.demand.len()) {
            self.demands -= most.demand.halve();
        }
    }

    /// Returns the record of a rule that was ever in force.
    pub(crate) fn find(&self, domain: &str, rule: &str) -> Option<&RuleRecord> {
        self.records.get(*self.by_name.get(&(domain.into(), rule.into()))?)
    }
}

impl RuleRecord {
    /// Returns the callers that the rule refused most, in descending order.
    pub(super) fn most_refused(&self) -> Vec<RefusedCaller> {
        self.details.as_ref().map(|details| details.most_refused.sorted()).unwrap_or_default()
    }
}

/// Fingerprints over all rules: 9 bytes each in tables that may be half empty, about 300 MB.
const FINGERPRINTS_MAX: usize = 16_000_000;

/// Rules with details: as many as have counts of their own.
const DETAILED_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::clock::Timestamp;
    use crate::engine::{Descriptors, Op, Request};
    use crate::rules::{Domain, read_text};
    use crate::trace::event::LeaseOwner;
    use crate::trace::player::Player;

    fn rules(names: &[&str]) -> Vec<Arc<Domain>> {
        let limits: Vec<_> =
            names.iter().map(|name| format!("  - {{name: {name}, key: [user], rate: 1/s}}\n")).collect();
        read_text("api.yaml", &format!("domain: api\nlimits:\n{}", limits.concat())).domains
    }

    #[test]
    fn a_rule_keeps_its_callers_when_it_gets_another_number() {
        let mut player = Player::new(rules(&["a", "b"]), 0, false);
        let ask = |player: &mut Player, domain: &str, user: &str| {
            player.advance(Timestamp::from_nanos(0));
            let attributes = [("user", user)];
            let request = Request::new(Op::Hit, domain, Descriptors::from_attributes(&attributes));
            player.judge(&request, &LeaseOwner::default()).unwrap();
        };
        ask(&mut player, "api", "u1");
        ask(&mut player, "api", "u1");
        ask(&mut player, "other", "u9");
        player.reload(rules(&["b", "c"]));
        ask(&mut player, "api", "u2");
        ask(&mut player, "api", "u3");
        let shown = ["a", "b", "c", "d"]
            .map(|rule| player.records.find("api", rule).map(|record| record.callers.shown()));
        assert_eq!(shown.map(Option::unwrap_or_default), ["1", "3", "2", ""]);
    }
}
