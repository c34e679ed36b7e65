//! Compares two rule sets over one trace: requests with a different verdict, and counts of each rule.

use std::fmt::Write;

use super::player::Player;
use super::summary::{PlayedCounts, name, passed, remarks, rules, verdicts};
use super::table::{TextTable, count, counted, difference};
use crate::engine::{Decision, RuleTotals, Totals, Verdict};

/// Requests whose verdicts differ between the two rule sets, without peeks.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Allowed by the first set, refused by the other.
    refused: u64,
    /// Refused by the first set, allowed by the other.
    allowed: u64,
    first: Vec<ComparisonChange>,
}

#[derive(Debug)]
struct ComparisonChange {
    line: u64,
    refused: bool,
    /// The rule that refuses it, in the set that does.
    rule: Box<str>,
}

impl Changes {
    /// Counts the request if the decisions of the two sets differ.
    pub(super) fn note(&mut self, line: u64, first: Option<&Decision<'_>>, other: Option<&Decision<'_>>) {
        let refused = is_granted(first);
        if refused == is_granted(other) {
            return;
        }
        *(if refused { &mut self.refused } else { &mut self.allowed }) += 1;
        if self.first.len() < SHOWN_MAX {
            let rule = binding(if refused { other } else { first });
            self.first.push(ComparisonChange { line, refused, rule });
        }
    }
}

/// Whether the request may start, now or after a wait. A request without a decision may.
fn is_granted(decision: Option<&Decision<'_>>) -> bool {
    decision.is_none_or(|decision| matches!(decision.verdict, Verdict::Allow | Verdict::Wait))
}

fn binding(decision: Option<&Decision<'_>>) -> Box<str> {
    decision.and_then(Decision::rule_name).unwrap_or_default().into()
}

pub(super) fn comparison(
    played: &PlayedCounts,
    player: &Player,
    other: &Player,
    changes: &Changes,
) -> String {
    let (one, two) = (player.totals(), other.totals());
    let mut text = format!("{}\n", played.opening());
    played.remarks.iter().for_each(|remark| text += &format!("{remark}\n"));
    for (set, totals) in [("rules", &one), ("other", &two)] {
        let _ = writeln!(text, "{set}: {}", [vec![verdicts(totals)], remarks(totals)].concat().join("; "));
    }
    text += &told(changes);
    text + &table(&one, &two).to_string()
}

/// The number of changed requests, and the first of them.
pub(super) fn told(changes: &Changes) -> String {
    let Changes { refused, allowed, first } = changes;
    let mut text = match refused + allowed {
        0 => return "no request changed its verdict\n".to_owned(),
        changed => format!("{} changed: ", counted(changed, "request")),
    };
    let _ = writeln!(
        text,
        "{} allowed → refused, {} refused → allowed; the first:",
        count(*refused),
        count(*allowed)
    );
    for ComparisonChange { line, refused, rule } in first {
        let change = if *refused { "allowed → refused" } else { "refused → allowed" };
        let _ = writeln!(text, "  line {line}: {change} ({rule})");
    }
    text
}

/// All rules matched by name: those of the first set in file order, then those that only the other has.
fn table(one: &Totals, two: &Totals) -> TextTable {
    let all = || rules(one).chain(rules(two));
    // Leave out a column of zeros.
    let shadow = all().any(|rule| rule.would_refuse > 0);
    let mut table = TextTable::new(&[
        "rule",
        "passed",
        "other",
        "+/-",
        "refused",
        "other",
        "+/-",
        "would refuse",
        "other",
        "+/-",
    ]);
    let same =
        |rule: &RuleTotals, other: &&RuleTotals| rule.domain == other.domain && rule.rule == other.rule;
    let row = |rule: Option<&RuleTotals>, other: Option<&RuleTotals>| {
        let mut cells = vec![rule.or(other).map(name).unwrap_or_default()];
        for number in NUMBERS {
            cells.extend([shown(rule, number), shown(other, number)]);
            let [one, other] = [rule, other].map(|rule| rule.map(number).unwrap_or_default());
            cells.push(difference(one, other));
        }
        cells
    };
    let mut rows: Vec<_> =
        rules(one).map(|rule| row(Some(rule), rules(two).find(|other| same(rule, other)))).collect();
    let only_two = rules(two).filter(|other| !rules(one).any(|rule| same(rule, other)));
    rows.extend(only_two.map(|other| row(None, Some(other))));
    for row in rows {
        table.push(row);
    }
    if shadow { table } else { table.without_last(3) }
}

fn shown(rule: Option<&RuleTotals>, number: fn(&RuleTotals) -> u64) -> String {
    rule.map_or("-".to_owned(), |rule| count(number(rule)))
}

/// Changed requests that are listed; all are counted.
const SHOWN_MAX: usize = 10;

pub(super) const NUMBERS: [fn(&RuleTotals) -> u64; 3] =
    [passed, |rule| rule.refuse, |rule| rule.would_refuse];
