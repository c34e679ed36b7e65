//! Decision metrics: counts by rule and by priority, and decision latency.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::{Scrape, Sheet};
use crate::engine::{RuleTotals, VerdictTotals};
use crate::rules::candidate_of;

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let (rules, candidates): (Vec<_>, Vec<_>) =
        rules(scrape).into_iter().partition(|rule| candidate_of(&rule.rule).is_none());
    decisions(scrape, &rules, sheet)?;
    checks(&rules, &candidates, sheet)?;
    priorities(scrape, sheet)?;
    let totals = &scrape.totals;
    let seconds = |nanos: u64| nanos as f64 / NANOS_PER_SECOND;
    let spans = totals.spans.counts.iter();
    let spans = spans.map(|(most, count)| (most.map_or(f64::INFINITY, seconds), *count));
    let help = "Time from reading a batch of requests to its encoded replies; one batch in 64 is timed. Act if its p99 \
                is above 1 ms: the host has no CPU left";
    let total = seconds(totals.spans.nanos);
    sheet.histogram("decision_seconds", help, total, &spans.collect::<Vec<_>>())?;
    let help = "Requests that no rule matched, by reason: domain: it has no rules; rule: none matches. Act if domain \
                grows: a name is misspelt, or rules are missing";
    let unmatched = [("domain", totals.unmatched_domain), ("rule", totals.unmatched_rule)];
    sheet.counters_by("unmatched", help, "reason", unmatched)?;
    let help = "Decisions that panicked; each closed its connection only. Act if above 0: please report it";
    sheet.counter("panics", help, &totals.panics)
}

/// The rules in force, and those that were and have been counted; the last is all others.
fn rules(scrape: &Scrape) -> Vec<&RuleTotals> {
    let in_force: HashSet<(&str, &str)> =
        scrape.in_force.each().map(|rule| (rule.domain, rule.name)).collect();
    let is_shown = |rule: &&RuleTotals| {
        let uncounted =
            RuleTotals { domain: rule.domain.clone(), rule: rule.rule.clone(), ..RuleTotals::default() };
        rule.domain.is_empty() || in_force.contains(&(&*rule.domain, &*rule.rule)) || **rule != uncounted
    };
    scrape.totals.rules.iter().filter(is_shown).collect()
}

fn decisions(scrape: &Scrape, rules: &[&RuleTotals], sheet: &mut Sheet<'_>) -> fmt::Result {
    let named = rules.iter().map(|rule| (&*rule.domain, &*rule.rule, &rule.verdicts));
    let unnamed = scrape.totals.unnamed.iter().map(|(domain, verdicts)| (&**domain, "", verdicts));
    let series = named.chain(unnamed).flat_map(|(domain, rule, verdicts)| {
        by_verdict(verdicts)
            .map(|(verdict, count)| ([("domain", domain), ("rule", rule), ("verdict", verdict)], count))
    });
    let help = "Decisions by verdict, at the rule that the answer names. `rule` is empty if it names none, \
                `domain` if that has no rules. Act if the share of limit or shed changes";
    sheet.counters("decisions", help, series)
}

fn checks(rules: &[&RuleTotals], candidates: &[&RuleTotals], sheet: &mut Sheet<'_>) -> fmt::Result {
    let outcomes = rules.iter().flat_map(|rule| {
        [
            ("pass", rule.pass),
            ("near", rule.near),
            ("over", rule.over),
            ("refuse", rule.refuse),
            ("would_refuse", rule.would_refuse),
        ]
        .map(|(outcome, count)| {
            ([("domain", &*rule.domain), ("rule", &*rule.rule), ("outcome", outcome)], count)
        })
    });
    let help = "Checks of a rule, by outcome; near: past `warn_at`; would_refuse: in shadow. A request has one \
                for each matching rule. Act if would_refuse is high before you enforce a rule";
    sheet.counters("rule_checks", help, outcomes)?;
    let candidates =
        candidates.iter().filter_map(|rule| Some((&*rule.domain, candidate_of(&rule.rule)?, rule)));
    let candidates = candidates.flat_map(|(domain, name, rule)| {
        [("pass", rule.pass + rule.near + rule.over), ("refuse", rule.refuse + rule.would_refuse)]
            .map(|(outcome, count)| ([("domain", domain), ("rule", name), ("outcome", outcome)], count))
    });
    let help = "Checks of the candidate of a rule, by outcome. Act if it refuses more than intended";
    sheet.counters("candidate_checks", help, candidates)?;
    let guards = rules.iter().map(|rule| ([("domain", &*rule.domain), ("rule", &*rule.rule)], rule.guard));
    let help = "Times that a rule refused more than half of at least 100 callers within five minutes of a change. Act if \
         above 0: probably a mistake in the rule";
    sheet.counters("guard", help, guards)
}

fn priorities(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    // The one that stands for all past the bound may have the name of one in the rules.
    let mut by_name: BTreeMap<&str, VerdictTotals> = BTreeMap::new();
    for (priority, more) in &scrape.totals.priorities {
        let sum = by_name.entry(priority).or_default();
        *sum = sum.plus(more);
    }
    let series = by_name.iter().flat_map(|(priority, verdicts)| {
        by_verdict(verdicts).map(|(verdict, count)| ([("priority", *priority), ("verdict", verdict)], count))
    });
    let help = "Decisions by the priority of the request, over all domains that have priorities. Act if the most \
                important priority is shed";
    sheet.counters("priority", help, series)
}

fn by_verdict(verdicts: &VerdictTotals) -> [(&'static str, u64); 5] {
    let VerdictTotals { allow, limit, wait, deny, shed } = *verdicts;
    [("allow", allow), ("limit", limit), ("wait", wait), ("deny", deny), ("shed", shed)]
}

const NANOS_PER_SECOND: f64 = 1e9;
