//! What another rule set would have made of the same trace: which requests changed, and both counts of each rule.

use std::fmt::Write;

use super::player::Player;
use super::summary::{Played, name, passed, remarks, rules, verdicts};
use super::table::{Table, count, counted, difference};
use crate::engine::{Decision, RuleTotals, Totals, Verdict};

/// The requests on which the two rule sets differ. What is only peeked at is not among them.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Allowed by the rules, refused by the others.
    refused: u64,
    /// Refused by the rules, allowed by the others.
    allowed: u64,
    first: Vec<Change>,
}

/// One of the first requests that changed.
#[derive(Debug)]
struct Change {
    line: u64,
    refused: bool,
    /// The rule that refuses in the one set and does not in the other.
    rule: Box<str>,
}

/// What is kept of a decision until the other is made.
#[derive(Debug)]
pub(super) struct Kept {
    granted: bool,
    rule: Option<Box<str>>,
}

impl Changes {
    /// Keeps what a change may have to tell.
    pub(super) fn keep(&self, decision: Option<&Decision<'_>>) -> Kept {
        let granted = is_granted(decision);
        let rule = (!granted && self.has_room()).then(|| binding(decision));
        Kept { granted, rule }
    }

    /// Notes whether the other decision differs.
    pub(super) fn note(&mut self, line: u64, kept: Kept, other: Option<&Decision<'_>>) {
        let refused = match (kept.granted, is_granted(other)) {
            (true, false) => true,
            (false, true) => false,
            _ => return,
        };
        *(if refused { &mut self.refused } else { &mut self.allowed }) += 1;
        if self.has_room() {
            let rule = if refused { binding(other) } else { kept.rule.unwrap_or_default() };
            self.first.push(Change { line, refused, rule });
        }
    }

    fn has_room(&self) -> bool {
        self.first.len() < SHOWN_MAX
    }
}

/// Whether the work may start, now or after a wait; what is not judged may.
fn is_granted(decision: Option<&Decision<'_>>) -> bool {
    decision.is_none_or(|decision| matches!(decision.verdict, Verdict::Allow | Verdict::Wait))
}

fn binding(decision: Option<&Decision<'_>>) -> Box<str> {
    decision.and_then(Decision::rule_name).unwrap_or_default().into()
}

/// The summary of two rule sets, side by side.
pub(super) fn comparison(played: &Played, player: &Player, other: &Player, changes: &Changes) -> String {
    let (one, two) = (player.totals(), other.totals());
    let mut text = format!("{}\n", played.opening());
    played.remarks.iter().for_each(|remark| text += &format!("{remark}\n"));
    for (set, totals) in [("rules", &one), ("other", &two)] {
        let _ = writeln!(text, "{set}: {}", [vec![verdicts(totals)], remarks(totals)].concat().join("; "));
    }
    text += &told(changes);
    text + &table(&one, &two).to_string()
}

/// How many requests changed, and the first of them.
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
    for Change { line, refused, rule } in first {
        let change = if *refused { "allowed → refused" } else { "refused → allowed" };
        let _ = writeln!(text, "  line {line}: {change} ({rule})");
    }
    text
}

/// Every rule of either set, matched by its name: those of the first in file order, then what only the other has.
fn table(one: &Totals, two: &Totals) -> Table {
    let all = || rules(one).chain(rules(two));
    // A column of zeros says nothing.
    let shadow = all().any(|rule| rule.would_refuse > 0);
    let mut table = Table::new(&[
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

/// Enough to look at; the counts say the rest.
const SHOWN_MAX: usize = 10;

/// The numbers of a rule that are compared.
pub(super) const NUMBERS: [fn(&RuleTotals) -> u64; 3] =
    [passed, |rule| rule.refuse, |rule| rule.would_refuse];
