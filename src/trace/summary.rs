//! The summary of a replay: a few lines of totals and a table of rules.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::player::Player;
use super::rule_records::RuleRecords;
use crate::clock::Micros;
use crate::engine::{Decision, RuleTotals, Totals, Verdict, VerdictTotals};
use crate::rules::shed::ShedPart;
use crate::terms::{count, counted, printable};

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
    /// `12 lines over 3 s`.
    pub(super) fn opening(&self) -> String {
        format!("{} over {}", counted(self.lines, "line"), Micros::from(self.span))
    }
}

pub(super) fn summary(played: &PlayedCounts, totals: &Totals, records: &RuleRecords) -> String {
    let mut text = format!("{}: {}\n", played.opening(), verdicts(totals));
    for remark in played.remarks.iter().chain(&remarks(totals)) {
        let _ = writeln!(text, "{remark}");
    }
    let rows = rules(totals).map(|rule| {
        let [passed, refused, would_refuse] = rule.outcomes().map(count);
        let record = records.find(&rule.domain, &rule.rule);
        let callers = record.map(|record| record.callers.shown(count)).unwrap_or_default();
        vec![name(&rule.domain, &rule.rule), passed, refused, would_refuse, callers]
    });
    text + &TextTable::new(&["rule", "passed", "refused", "would refuse", "callers"], rows).to_string()
}

/// The summary for programs: verdicts and rules of the first set, and of another one with the changed requests.
pub(super) fn summary_json(
    played: &PlayedCounts,
    totals: &Totals,
    other: Option<(&Totals, &Changes)>,
) -> Value {
    let set = |totals: &Totals| {
        let rules: Vec<&RuleTotals> = rules(totals).collect();
        json!({"verdicts": totals.verdicts, "rules": rules, "remarks": remarks(totals)})
    };
    let (lines, span, remarks) = (played.lines, played.span.as_secs_f64(), &played.remarks);
    let mut summary = json!({"lines": lines, "span_s": span, "remarks": remarks, "decided": set(totals)});
    if let (Some((other, changes)), Some(fields)) = (other, summary.as_object_mut()) {
        fields.insert("compared".to_owned(), set(other));
        let changes = json!({"refused": changes.refused, "allowed": changes.allowed});
        fields.insert("changes".to_owned(), changes);
    }
    summary
}

/// `12 allowed, 3 limited, 1 shed`.
pub(super) fn verdicts(totals: &Totals) -> String {
    let texts = figures(totals).map(|(verdict, number)| format!("{} {verdict}", count(number)));
    texts.collect::<Vec<_>>().join(", ")
}

/// The decisions by verdict. Shed, waited and denied are shown only above zero.
pub(super) fn figures(totals: &Totals) -> impl Iterator<Item = (&'static str, u64)> {
    let VerdictTotals { allow, limit, shed, wait, deny } = totals.verdicts;
    let others = [("shed", shed), ("waited", wait), ("denied", deny)];
    let others = others.into_iter().filter(|(_, number)| *number > 0);
    [("allowed", allow), ("limited", limit)].into_iter().chain(others)
}

/// Totals that belong to no rule.
pub(super) fn remarks(totals: &Totals) -> Vec<String> {
    let remarks = above_zero([
        (totals.unmatched_domain, "request", "for a domain without rules"),
        (totals.unmatched_rule, "request", "that no rule matched"),
        (totals.evictions, "key", "dropped for lack of memory"),
    ]);
    remarks.collect()
}

/// Returns the remarks of the numbers above zero, each with its noun.
pub(super) fn above_zero<const N: usize>(
    remarks: [(u64, &'static str, &'static str); N],
) -> impl Iterator<Item = String> {
    let some = remarks.into_iter().filter(|(number, ..)| *number > 0);
    some.map(|(number, noun, what)| format!("{} {what}", counted(number, noun)))
}

/// The rules with own counts in file order, pools' parts that saw requests, and the sum of all others.
pub(super) fn rules(totals: &Totals) -> impl Iterator<Item = &RuleTotals> {
    let saw = |rule: &RuleTotals| rule.outcomes().iter().any(|number| *number > 0);
    // Parts of pools have counts even if no file names them; other rules have no slash in their names.
    let is_part = |rule: &RuleTotals| {
        rule.rule
            .rsplit_once('/')
            .is_some_and(|(_, end)| ShedPart::ALL.iter().any(|part| <&str>::from(part) == end))
    };
    let is_rule = move |rule: &RuleTotals| !rule.domain.is_empty() && !is_part(rule);
    totals.rules.iter().filter(move |rule| is_rule(rule) || saw(rule))
}

/// Formats the name of a rule; the sum of the other rules has none.
pub(crate) fn name(domain: &str, rule: &str) -> String {
    if domain.is_empty() { "(all others)".to_owned() } else { format!("{domain}/{rule}") }
}

/// Requests whose verdicts differ between the two rule sets, without peeks.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Allowed by the first set, refused by the other.
    refused: u64,
    /// Refused by the first set, allowed by the other.
    pub(super) allowed: u64,
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
            let rule = if refused { other } else { first }.and_then(Decision::rule_name);
            self.first.push(ComparisonChange { line, refused, rule: rule.unwrap_or_default().into() });
        }
    }
}

/// Whether the request may start, now or after a wait. A request without a decision may.
fn is_granted(decision: Option<&Decision<'_>>) -> bool {
    decision.is_none_or(|decision| matches!(decision.verdict, Verdict::Allow | Verdict::Wait))
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
    text += &describe_changes(changes);
    text + &table(&one, &two).to_string()
}

/// The number of changed requests, and the first of them.
pub(super) fn describe_changes(changes: &Changes) -> String {
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
    // Leave out a column of zeros.
    let has_shadow = rules(one).chain(rules(two)).any(|rule| rule.would_refuse > 0);
    let kinds = ["passed", "refused", "would refuse"].into_iter().take(if has_shadow { 3 } else { 2 });
    let of_kinds = kinds.clone().flat_map(|kind| [kind, "other", "+/-"]);
    let headings: Vec<&str> = std::iter::once("rule").chain(of_kinds).collect();
    let same =
        |rule: &RuleTotals, other: &&RuleTotals| rule.domain == other.domain && rule.rule == other.rule;
    let outcomes = |rule: Option<&RuleTotals>| rule.map_or([None; 3], |rule| rule.outcomes().map(Some));
    let row = |rule: Option<&RuleTotals>, other: Option<&RuleTotals>| {
        let named = rule.or(other).map(|rule| name(&rule.domain, &rule.rule));
        let mut cells = vec![named.unwrap_or_default()];
        for (_, (one, other)) in kinds.clone().zip(outcomes(rule).into_iter().zip(outcomes(other))) {
            cells.extend([one, other].map(|number| number.map_or_else(|| "-".to_owned(), count)));
            cells.push(difference(one.unwrap_or_default(), other.unwrap_or_default()));
        }
        cells
    };
    let of_one = rules(one).map(|rule| row(Some(rule), rules(two).find(|other| same(rule, other))));
    let only_two = rules(two).filter(|other| !rules(one).any(|rule| same(rule, other)));
    TextTable::new(&headings, of_one.chain(only_two.map(|other| row(None, Some(other)))))
}

/// Changed requests that are listed; all are counted.
const SHOWN_MAX: usize = 10;

/// Rows of cells. The first column is aligned left, the others right.
#[derive(Debug)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> TextTable {
        let headings = headings.iter().map(ToString::to_string).collect();
        let printable = |cell: String| printable(&cell, &[]).into_owned();
        let rows = rows.map(|row| row.into_iter().map(printable).collect());
        TextTable { rows: std::iter::once(headings).chain(rows).collect() }
    }

    /// Formats the table; `None` without rows below the headings.
    pub(crate) fn shown(&self) -> Option<String> {
        (self.len() > 0).then(|| self.to_string())
    }

    /// Returns the number of rows below the headings.
    pub(crate) fn len(&self) -> usize {
        self.rows.len().saturating_sub(1)
    }

    /// Returns the columns that fit into a width, each with its number and its padded cells. It leaves out columns in the order
    /// of `dispensable`, then shortens the cells of the first; it never shortens a number.
    pub fn fit(&self, width: usize, dispensable: &[usize]) -> Vec<(usize, Vec<String>)> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let mut kept: Vec<(usize, usize)> = (0..columns).map(|column| (column, self.width(column))).collect();
        let others =
            |kept: &[(usize, usize)]| kept.iter().skip(1).map(|(_, width)| width + GAP).sum::<usize>();
        let first = kept.first().map_or(0, |(_, width)| *width);
        for dispensable in dispensable {
            if first.min(FIRST_COLUMN_MIN) + others(&kept) > width {
                kept.retain(|(column, _)| column != dispensable);
            }
        }
        let first = first.min(width.saturating_sub(others(&kept)));
        let padded = |row: &Vec<String>, column, width: usize| {
            let cell = row.get(column).map(String::as_str).unwrap_or_default();
            if column == 0 { format!("{:first$}", shorten(cell, first)) } else { format!("{cell:>width$}") }
        };
        let cells = |(column, width)| self.rows.iter().map(|row| padded(row, column, width)).collect();
        kept.into_iter().map(|(column, width)| (column, cells((column, width)))).collect()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.fit(usize::MAX, &[]);
        for number in 0..self.rows.len() {
            let cells = columns.iter().filter_map(|(_, cells)| cells.get(number));
            let line = cells.map(String::as_str).collect::<Vec<_>>().join(&" ".repeat(GAP));
            let end = if number + 1 < self.rows.len() { "\n" } else { "" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Shortens a text to a number of characters, the last of them `…`.
fn shorten(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    text.chars().take(length.saturating_sub(1)).chain((length > 0).then_some('…')).collect()
}

/// Blanks between two columns.
pub(crate) const GAP: usize = 2;

/// A name stays recognisable: columns that can be spared go first.
const FIRST_COLUMN_MIN: usize = 20;

/// Formats `other - one` with its sign; `=` if they are equal.
pub(super) fn difference(one: u64, other: u64) -> String {
    match other.cmp(&one) {
        std::cmp::Ordering::Equal => "=".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", count(other - one)),
        std::cmp::Ordering::Less => format!("-{}", count(one - other)),
    }
}
