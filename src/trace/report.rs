//! The HTML report of a replay: one file with inline pictures, without scripts or other files. Everything in
//! a trace and in rules may be hostile, and is escaped.

mod course;
mod rule;

use std::io;
use std::path::Path;

use maud::{Markup, Render, html};

use super::callers::CallerSet;
use super::comparison::{Changes, NUMBERS, told};
use super::course::StepCounts;
use super::player::Player;
use super::rule_in_sets::{RuleInSets, rules_in_sets};
use super::rule_records::RuleRecord;
use super::summary::{PlayedCounts, remarks};
use crate::engine::{Totals, VerdictTotals};
use crate::page::{count, document, name, nonce, rule_name, table};
use crate::state::AtomicFile;
use rule::at_least;

/// Names of the trace and the rules, as on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportNames<'a> {
    pub(crate) trace: &'a str,
    pub(crate) rules: &'a str,
    pub(crate) other: Option<&'a str>,
    /// Why the trace ended early.
    pub(crate) failure: Option<&'a str>,
}

/// The results of one rule set.
pub(super) struct ReportSet<'s> {
    pub(super) name: &'s str,
    pub(super) totals: Totals,
    pub(super) course: &'s StepCounts,
    pub(super) player: &'s Player,
}

impl<'s> ReportSet<'s> {
    /// Ends the replay of a rule set. `None` if it collected no data for a report.
    pub(super) fn new(name: &'s str, player: &'s mut Player) -> Option<ReportSet<'s>> {
        let totals = player.totals();
        player.course.as_mut()?.end(&totals);
        let player = &*player;
        Some(ReportSet { name, totals, course: player.course.as_ref()?, player })
    }
}

/// Creates the report's file, so that an unwritable path fails before the replay.
///
/// # Errors
/// The path cannot be written, or is not a regular file.
pub(crate) fn begin(path: &Path) -> io::Result<AtomicFile> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::other("this is no file: name one for the report, such as replay.html"))
        }
        _ => AtomicFile::begin(path),
    }
}

/// Returns the page of one rule set, or of two side by side.
pub(super) fn page(
    played: &PlayedCounts,
    names: &ReportNames<'_>,
    one: &ReportSet<'_>,
    other: Option<(&ReportSet<'_>, &Changes)>,
) -> String {
    let sets: Vec<&ReportSet<'_>> = std::iter::once(one).chain(other.map(|(other, _)| other)).collect();
    let rules: Vec<_> = rules_in_sets(&sets).into_iter().zip(1..).collect();
    let rules: Vec<_> = rules.iter().map(|(rule, number)| (format!("rule-{number}"), rule)).collect();
    let nonce = nonce();
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; form-action 'none'"
    );
    let head = html! {
        meta http-equiv="Content-Security-Policy" content=(policy);
        meta name="referrer" content="no-referrer";
        link rel="icon" href="data:,";
    };
    let body = html! {
        body {
            div id="page" {
                header {
                    h1 { "Replay " span.host { (name(names.trace)) } }
                    p.when { (played.opening()) }
                }
                main {
                    @if let Some(failure) = names.failure {
                        section.health aria-labelledby="failure" {
                            h2 id="failure" class="bad" { "✖ It ended early" }
                            ul.warnings { li { (failure) "; what came before it is shown" } }
                        }
                    }
                    section aria-labelledby="decisions" {
                        h2 id="decisions" { "Decisions" }
                        (decisions(played, &sets, other.map(|(_, changes)| told(changes))))
                    }
                    section aria-labelledby="rules" { h2 id="rules" { "Rules" } (rules_table(sets.len(), &rules)) }
                    @for (id, rule) in rules.iter().filter(|(_, rule)| rule.has_counts()) { (rule::section(id, rule)) }
                }
                footer { h2 { "How it is counted" } ul { @for line in HOW_IT_IS_COUNTED { li { (line) } } } }
            }
        }
    };
    document(&format!("Replay of {}", names.trace), &nonce, &head, include_str!("report/report.css"), &body)
}

/// Shows the verdicts of all requests, in total and over time, and the changes between two sets.
fn decisions(played: &PlayedCounts, sets: &[&ReportSet<'_>], changes: Option<String>) -> Markup {
    let steps: Vec<_> = sets.iter().map(|set| set.course.verdicts()).collect();
    let most = course::most(steps.iter().flatten());
    let figures = |VerdictTotals { allow, limit, shed, wait, deny }: VerdictTotals| {
        let others = [("shed", shed), ("waited", wait), ("denied", deny)];
        let others = others.into_iter().filter(|(_, number)| *number > 0);
        [("allowed", allow), ("limited", limit)].into_iter().chain(others)
    };
    let changes = changes.unwrap_or_default();
    html! {
        div.columns {
            @for (set, steps) in sets.iter().zip(&steps) {
                div {
                    h3.set { code { (set.name) } }
                    dl.figures {
                        @for (name, number) in figures(set.totals.verdicts) { div { dt { (name) } dd { (count(number)) } } }
                    }
                    (course::chart("Decisions", course::DECISIONS, set.course, steps, most))
                    (list(remarks(&set.totals)))
                }
            }
        }
        (list(&played.remarks))
        @if let Some(line) = changes.lines().next() { h3 { (line) } (list(changes.lines().skip(1).map(str::trim))) }
    }
}

fn list(lines: impl IntoIterator<Item = impl Render>) -> Markup {
    let mut lines = lines.into_iter().peekable();
    html! { @if lines.peek().is_some() { ul.remarks { @for line in lines { li { (line) } } } } }
}

/// Shows the table of the summary, each rule linked to its section.
fn rules_table(sets: usize, rules: &[(String, &RuleInSets<'_>)]) -> Markup {
    let kinds = ["passed", "refused", "would refuse", "callers", "of them refused"];
    let numbers: Vec<_> = kinds.iter().flat_map(|kind| [*kind, "other"].into_iter().take(sets)).collect();
    let dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let rows = rules.iter().map(|(id, rule)| {
        let name = rule_name(rule.domain, rule.rule);
        html! {
            th scope="row" { @if rule.has_counts() { a href={ "#" (id) } { (name) } } @else { (name) } }
            @for (number, class) in NUMBERS.iter().zip(["number", "number some refused", "number some would"]) {
                @for number in rule.sets.iter().map(|set| set.totals.map(number)) {
                    td class=(if number > Some(0) { class } else { "number" }) { (dash(number.map(count))) }
                }
            }
            @for callers in CALLERS {
                @for set in &rule.sets {
                    @let callers = set.record.map(|record| at_least(callers(record).count()));
                    td.number { (dash(set.totals.map(|_| callers.unwrap_or_default()))) }
                }
            }
        }
    });
    table("", "Requests, and how many callers they were of", &["Rule"], &numbers, rows)
}

const CALLERS: [fn(&RuleRecord) -> &CallerSet; 2] = [|record| &record.callers, |record| &record.refused];

/// The notes at the end of the page.
const HOW_IT_IS_COUNTED: [&str; 5] = [
    "Refused and passed are the engine’s own counts, those of the summary. A step is as long as the trace asks for: there \
     are 240 at most.",
    "A window is as long as the time over which a rule gives its limit out: limit ÷ rate, or its own window. It begins at \
     a multiple of that, counted from 1970 (or from the zero of the trace). What a caller does across an edge falls into \
     two.",
    "The spread is of what was asked for, whatever became of it, in the unit of the rule. What is charged afterwards is \
     not in it, and limits of concurrency have no windows.",
    "Of all rules together 500 000 callers are told apart for it. Of more an even share is looked at, and the page says \
     which. Rules past the 512th have no pictures of callers.",
    "Of each rule the 20 callers refused most are shown as the trace has them. Of a rule that refuses more than 512 \
     callers the counts may be too large, by at most what is said beside them.",
];
