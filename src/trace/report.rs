//! The HTML report of a replay: one file with inline pictures, without scripts or other files. Everything in
//! a trace and in rules may be hostile, and is escaped.

mod course;
mod rule;

use std::io;
use std::path::Path;

use maud::{Markup, Render, html};

use super::comparison::{Changes, NUMBERS, told};
use super::player::Player;
use super::side::ReportWatch;
use super::summary::{Played, remarks};
use crate::engine::Totals;
use crate::page::{count, document, name, nonce, table};
use crate::state::AtomicFile;
use rule::{OfSet, RuleRow, rows};

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
pub(crate) struct ReportSet<'s> {
    pub(super) name: &'s str,
    pub(crate) totals: Totals,
    pub(crate) watch: &'s ReportWatch,
    pub(crate) player: &'s Player,
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
    played: &Played,
    names: &ReportNames<'_>,
    one: &ReportSet<'_>,
    other: Option<(&ReportSet<'_>, &Changes)>,
) -> String {
    let sets: Vec<&ReportSet<'_>> = std::iter::once(one).chain(other.map(|(other, _)| other)).collect();
    let rows = rows(&sets);
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
                    (decisions(played, &sets, other.map(|(_, changes)| changes)))
                    section aria-labelledby="rules" { h2 id="rules" { "Rules" } (rules_table(&sets, &rows)) }
                    @for row in rows.iter().filter(|row| row.has_counts()) { (row.section()) }
                }
                footer { h2 { "How it is counted" } ul { @for line in HOW_IT_IS_COUNTED { li { (line) } } } }
            }
        }
    };
    document(&format!("Replay of {}", names.trace), &nonce, &head, include_str!("report/report.css"), &body)
}

/// Shows the verdicts of all requests, in total and over time.
fn decisions(played: &Played, sets: &[&ReportSet<'_>], changes: Option<&Changes>) -> Markup {
    let most = course::most(sets.iter().flat_map(|set| set.watch.course.verdicts()));
    let figures = |Totals { allowed, limited, shed, waited, denied, .. }: &Totals| {
        let others = [("shed", *shed), ("waited", *waited), ("denied", *denied)];
        let others = others.into_iter().filter(|(_, number)| *number > 0);
        [("allowed", *allowed), ("limited", *limited)].into_iter().chain(others)
    };
    let changes = changes.map(told).unwrap_or_default();
    html! {
        section aria-labelledby="decisions" {
            h2 id="decisions" { "Decisions" }
            div.columns {
                @for set in sets {
                    div {
                        h3.set { code { (set.name) } }
                        dl.figures {
                            @for (name, number) in figures(&set.totals) { div { dt { (name) } dd { (count(number)) } } }
                        }
                        @let course = &set.watch.course;
                        (course::chart("Decisions", course::DECISIONS, course, &course.verdicts(), most))
                        (list(remarks(&set.totals)))
                    }
                }
            }
            (list(&played.remarks))
            @if let Some(line) = changes.lines().next() { h3 { (line) } (list(changes.lines().skip(1).map(str::trim))) }
        }
    }
}

fn list(lines: impl IntoIterator<Item = impl Render>) -> Markup {
    let mut lines = lines.into_iter().peekable();
    html! { @if lines.peek().is_some() { ul.remarks { @for line in lines { li { (line) } } } } }
}

/// Shows the table of the summary, each rule linked to its section.
fn rules_table(sets: &[&ReportSet<'_>], rows: &[RuleRow<'_>]) -> Markup {
    let kinds = ["passed", "refused", "would refuse", "callers", "of them refused"];
    let of_kind = |kind| {
        ["other"; 2].into_iter().take(sets.len() - 1).fold(vec![("number", kind)], |mut all, other| {
            all.push(("number", other));
            all
        })
    };
    let headings: Vec<_> = [("", "Rule")].into_iter().chain(kinds.into_iter().flat_map(of_kind)).collect();
    let classes = ["number", "number some refused", "number some would"];
    let rows = rows.iter().map(|row| {
        let callers: Vec<_> = row.sets.iter().map(OfSet::callers).collect();
        html! {
            th scope="row" { @if row.has_counts() { a href={ "#" (row.id) } { (row.name()) } } @else { (row.name()) } }
            @for (number, class) in NUMBERS.iter().zip(classes) {
                @for number in row.sets.iter().map(|set| set.totals.map(number)) {
                    td class=(if number > Some(0) { class } else { "number" }) {
                        (number.map_or_else(|| "–".to_owned(), count))
                    }
                }
            }
            @for [all, _] in &callers { td.number { (all) } }
            @for [_, refused] in &callers { td.number { (refused) } }
        }
    });
    table("", "Requests, and how many callers they were of", &headings, rows)
}

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
