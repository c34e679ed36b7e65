//! The summary of a replay: a few lines of totals and a table of rules.

use std::fmt::Write;
use std::time::Duration;

use super::rule_records::RuleRecords;
use super::table::{TextTable, count, counted};
use crate::engine::{RuleTotals, Totals};
use crate::rules::shed::ShedPart;

/// The events played, independent of the rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlayedCounts {
    pub(crate) lines: u64,
    /// From the first event to the last.
    pub(crate) span: Duration,
    /// Remarks on the trace itself, a line each.
    pub(crate) remarks: Vec<String>,
}

impl PlayedCounts {
    /// `12 lines over 3s`.
    pub(super) fn opening(&self) -> String {
        // Fractions of a second are noise in a long trace.
        let span = if self.span > MINUTE { Duration::from_secs(self.span.as_secs()) } else { self.span };
        format!("{} over {}", counted(self.lines, "line"), humantime::format_duration(span))
    }
}

pub(super) fn summary(played: &PlayedCounts, totals: &Totals, records: &RuleRecords) -> String {
    let mut text = format!("{}: {}\n", played.opening(), verdicts(totals));
    for remark in played.remarks.iter().chain(&remarks(totals)) {
        let _ = writeln!(text, "{remark}");
    }
    let mut table = TextTable::new(&["rule", "passed", "refused", "would refuse", "callers"]);
    for rule in rules(totals) {
        table.push(vec![
            name(rule),
            count(passed(rule)),
            count(rule.refuse),
            count(rule.would_refuse),
            records.find(&rule.domain, &rule.rule).map(|record| record.callers.shown()).unwrap_or_default(),
        ]);
    }
    text + &table.to_string()
}

/// `12 allowed, 3 limited, 1 shed`. Shed, waited and denied are shown only above zero.
pub(super) fn verdicts(totals: &Totals) -> String {
    let mut text =
        format!("{} allowed, {} limited", count(totals.verdicts.allow), count(totals.verdicts.limit));
    for (number, verdict) in
        [(totals.verdicts.shed, "shed"), (totals.verdicts.wait, "waited"), (totals.verdicts.deny, "denied")]
    {
        if number > 0 {
            let _ = write!(text, ", {} {verdict}", count(number));
        }
    }
    text
}

/// Totals that belong to no rule.
pub(super) fn remarks(totals: &Totals) -> Vec<String> {
    let remarks = [
        (totals.unmatched_domain, "request", "for a domain without rules"),
        (totals.unmatched_rule, "request", "that no rule matched"),
        (totals.evictions, "key", "dropped for lack of memory"),
    ];
    remarks
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, noun, what)| format!("{} {what}", counted(number, noun)))
        .collect()
}

/// The rules with own counts in file order, pools' parts that saw requests, and the sum of all others.
pub(super) fn rules(totals: &Totals) -> impl Iterator<Item = &RuleTotals> {
    let saw = |rule: &RuleTotals| passed(rule) + rule.refuse + rule.would_refuse > 0;
    // Parts of pools have counts even if no file names them; other rules have no slash in their names.
    let is_part = |rule: &RuleTotals| {
        rule.rule
            .rsplit_once('/')
            .is_some_and(|(_, end)| ShedPart::ALL.iter().any(|part| part.to_string() == end))
    };
    let is_rule = move |rule: &RuleTotals| !rule.domain.is_empty() && !is_part(rule);
    totals.rules.iter().filter(move |rule| is_rule(rule) || saw(rule))
}

/// Requests that passed a rule, including those near its limit or in its soft part.
pub(crate) fn passed(rule: &RuleTotals) -> u64 {
    rule.pass + rule.near + rule.over
}

/// The rule's name with its domain.
pub(super) fn name(rule: &RuleTotals) -> String {
    if rule.domain.is_empty() { "(all others)".into() } else { format!("{}/{}", rule.domain, rule.rule) }
}

const MINUTE: Duration = Duration::from_secs(60);
