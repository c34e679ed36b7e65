//! The HTML report of a replay: one file with inline pictures, without scripts or other files. Everything in
//! a trace and in rules may be hostile, and is escaped.

mod axis;
mod callers;
mod course;
mod rule;

use std::fmt::Write;
use std::io;
use std::path::Path;

use super::comparison::{Changes, NUMBERS, told};
use super::player::Player;
use super::side::ReportWatch;
use super::summary::{Played, remarks};
use crate::engine::Totals;
use crate::page::{EscapedText, IsolatedName, STYLE, count, nonce};
use crate::state::AtomicFile;
use rule::{RuleRow, rows};

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

/// The page of one rule set, or of two side by side.
pub(super) fn page(
    played: &Played,
    about: &ReportNames<'_>,
    one: &ReportSet<'_>,
    other: Option<(&ReportSet<'_>, &Changes)>,
) -> String {
    let sets: Vec<&ReportSet<'_>> = std::iter::once(one).chain(other.map(|(other, _)| other)).collect();
    let mut page = String::with_capacity(PAGE_BYTES);
    head(&mut page, about);
    opening(&mut page, played, about);
    decisions(&mut page, played, &sets, other.map(|(_, changes)| changes));
    let rows = rows(&sets);
    table(&mut page, &sets, &rows);
    for row in rows.iter().filter(|row| row.saw_something()) {
        rule::write(&mut page, row, &sets);
    }
    page.push_str("</main>");
    page.push_str(HOW_IT_IS_COUNTED);
    page.push_str("</div></body></html>\n");
    page
}

fn head(page: &mut String, about: &ReportNames<'_>) {
    let nonce = nonce();
    let _ = write!(
        page,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; form-action 'none'\">\
         <title>Replay of {}</title><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta \
         name=\"color-scheme\" content=\"light dark\"><meta name=\"referrer\" content=\"no-referrer\"><link rel=\"icon\" \
         href=\"data:,\"><style nonce=\"{nonce}\">{STYLE}{OWN_STYLE}</style></head>",
        EscapedText(about.trace),
    );
}

fn opening(page: &mut String, played: &Played, about: &ReportNames<'_>) {
    let _ = write!(
        page,
        "<body><div id=\"page\"><header><h1>Replay <span class=\"host\">{}</span></h1><p class=\"when\">{}</p></header><main>",
        IsolatedName(about.trace),
        EscapedText(&played.opening()),
    );
    if let Some(failure) = about.failure {
        let _ = write!(
            page,
            "<section class=\"health\" aria-labelledby=\"failure\"><h2 id=\"failure\" class=\"bad\">✖ It ended early</h2><ul \
             class=\"warnings\"><li>{}; what came before it is shown</li></ul></section>",
            EscapedText(failure),
        );
    }
}

/// The verdicts of all requests, in total and over time.
fn decisions(page: &mut String, played: &Played, sets: &[&ReportSet<'_>], changes: Option<&Changes>) {
    page.push_str(
        "<section aria-labelledby=\"decisions\"><h2 id=\"decisions\">Decisions</h2><div class=\"columns\">",
    );
    for set in sets {
        let _ = write!(
            page,
            "<div><h3 class=\"set\"><code>{}</code></h3><dl class=\"figures\">",
            EscapedText(set.name)
        );
        let Totals { allowed, limited, shed, waited, denied, .. } = set.totals;
        let always = [("allowed", allowed), ("limited", limited)];
        let others = [("shed", shed), ("waited", waited), ("denied", denied)];
        for (name, number) in always.into_iter().chain(others.into_iter().filter(|(_, number)| *number > 0)) {
            let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", count(number));
        }
        page.push_str("</dl>");
        course::decisions(page, set, sets);
        list(page, &remarks(&set.totals));
        page.push_str("</div>");
    }
    page.push_str("</div>");
    list(page, &played.remarks);
    if let Some(changes) = changes {
        let told = told(changes);
        let mut lines = told.lines();
        let _ = write!(page, "<h3>{}</h3>", EscapedText(lines.next().unwrap_or_default()));
        list(page, &lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>());
    }
    page.push_str("</section>");
}

fn list(page: &mut String, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    page.push_str("<ul class=\"remarks\">");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", EscapedText(line));
    }
    page.push_str("</ul>");
}

/// The table of the summary, each rule linked to its section.
fn table(page: &mut String, sets: &[&ReportSet<'_>], rows: &[RuleRow<'_>]) {
    page.push_str(
        "<section aria-labelledby=\"rules\"><h2 id=\"rules\">Rules</h2><div class=\"wide\"><table><caption>Requests, and how \
         many callers they were of</caption><thead><tr><th scope=\"col\">Rule</th>",
    );
    for heading in ["passed", "refused", "would refuse", "callers", "of them refused"] {
        for (place, _) in sets.iter().enumerate() {
            let other = if place == 0 { heading } else { "<span class=\"quiet\">other</span>" };
            let _ = write!(page, "<th scope=\"col\" class=\"number\">{other}</th>");
        }
    }
    page.push_str("</tr></thead><tbody>");
    for row in rows {
        let name = row.name();
        let name = match row.saw_something() {
            true => format!("<a href=\"#{}\">{name}</a>", row.id()),
            false => name,
        };
        let _ = write!(page, "<tr><th scope=\"row\">{name}</th>");
        for (number, class) in NUMBERS.iter().zip(["", " some refused", " some would"]) {
            for of in row.sets.iter() {
                cell(page, of.totals.map(number), class);
            }
        }
        for of in row.sets.iter() {
            let _ = write!(page, "<td class=\"number\">{}</td>", of.callers());
        }
        for of in row.sets.iter() {
            let _ = write!(page, "<td class=\"number\">{}</td>", of.refused_callers());
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div></section>");
}

fn cell(page: &mut String, number: Option<u64>, class: &str) {
    let class = if number.is_some_and(|number| number > 0) { class } else { "" };
    let _ = write!(page, "<td class=\"number{class}\">{}</td>", number.map_or_else(|| "–".to_owned(), count));
}

const OWN_STYLE: &str = include_str!("report/report.css");

/// Initial capacity: a page of about 20 rules.
const PAGE_BYTES: usize = 128 * 1_024;

const HOW_IT_IS_COUNTED: &str = "<footer><h2>How it is counted</h2><ul>\
<li>Refused and passed are the engine’s own counts, those of the summary. A step is as long as the trace asks for: there \
are 240 at most.</li>\
<li>A window is as long as the time over which a rule gives its limit out: limit ÷ rate, or its own window. It begins at a \
multiple of that, counted from 1970 (or from the zero of the trace). What a caller does across an edge falls into two.</li>\
<li>The spread is of what was asked for, whatever became of it, in the unit of the rule. What is charged afterwards is not in \
it, and limits of concurrency have no windows.</li>\
<li>Of all rules together 500 000 callers are told apart for it. Of more an even share is looked at, and the page says which. \
Rules past the 512th have no pictures of callers.</li>\
<li>Of each rule the 20 callers refused most are shown as the trace has them. Of a rule that refuses more than 512 callers \
the counts may be too large, by at most what is said beside them.</li>\
</ul></footer>";
