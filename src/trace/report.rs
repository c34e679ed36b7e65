//! The HTML report of a replay: one file with inline pictures, without scripts or other files. Everything in
//! a trace and in rules may be hostile, and is escaped.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use maud::{Markup, Render, html};

use super::course::StepCounts;
use super::player::Player;
use super::recording::there_already;
use super::rule_records::{CallerSet, RuleRecord};
use super::spread::{CallerDistribution, QUANTILES};
use super::summary::{Changes, PlayedCounts, describe_changes, figures, remarks, rules};
use crate::engine::{RuleTotals, Totals, UNIT_REQUESTS};
use crate::page::{
    bar_edges, count, counted, document, draw_bars, draw_lines, frame, legend, name, nonce, rule_name, span,
    table,
};
use crate::rules::words::{each, numbers_or_unlimited};
use crate::rules::{Mode, Rule};
use crate::state::AtomicFile;

/// Names of the trace and the rules, as on the command line.
#[derive(Clone, Debug)]
pub(crate) struct ReportNames {
    pub(crate) trace: String,
    pub(crate) rules: String,
    pub(crate) other: Option<String>,
    /// Why the trace ended early.
    pub(crate) failure: Option<String>,
}

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

/// Creates the report's file, so that a path that is unwritable or there already fails before the replay.
pub(crate) fn begin(path: &Path) -> io::Result<AtomicFile> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::other("this is no file: name one for the report, such as replay.html"))
        }
        Ok(_) => Err(there_already()),
        Err(_) => AtomicFile::begin(path),
    }
}

/// Returns the page of one rule set, or of two side by side.
pub(super) fn page(
    played: &PlayedCounts,
    names: &ReportNames,
    sets: &[ReportSet<'_>],
    changes: &Changes,
) -> String {
    let changes = (sets.len() > 1).then(|| describe_changes(changes));
    let rules: Vec<_> = rules_in_sets(sets).into_iter().zip(1..).collect();
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
                    h1 { "Replay " span.host { (name(&names.trace)) } }
                    p.when { (played.opening()) }
                }
                main {
                    @if let Some(failure) = &names.failure {
                        section.health aria-labelledby="failure" {
                            h2 id="failure" class="bad" { "✖ It ended early" }
                            ul.warnings { li { (failure) "; the part before it is shown" } }
                        }
                    }
                    section aria-labelledby="decisions" {
                        h2 id="decisions" { "Decisions" }
                        (decisions(played, sets, changes))
                    }
                    section aria-labelledby="rules" { h2 id="rules" { "Rules" } (rules_table(sets.len(), &rules)) }
                    @for (id, rule) in rules.iter().filter(|(_, rule)| rule.has_counts()) { (section(id, rule)) }
                }
                footer { h2 { "How it is counted" } ul { @for line in HOW_IT_IS_COUNTED { li { (line) } } } }
            }
        }
    };
    document(&format!("Replay of {}", names.trace), &nonce, &head, include_str!("report/report.css"), &body)
}

/// Shows the verdicts of all requests, in total and over time, and the changes between two sets.
fn decisions(played: &PlayedCounts, sets: &[ReportSet<'_>], changes: Option<String>) -> Markup {
    let steps: Vec<_> = sets.iter().map(|set| set.course.verdicts()).collect();
    let most = highest(steps.iter().flatten());
    let changes = changes.unwrap_or_default();
    html! {
        div.columns {
            @for (set, steps) in sets.iter().zip(&steps) {
                div {
                    h3.set { code { (set.name) } }
                    dl.figures {
                        @for (name, number) in figures(&set.totals) { div { dt { (name) } dd { (count(number)) } } }
                    }
                    (chart("Decisions", DECISIONS, set.course, steps, most))
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
            @for (outcome, class) in ["number", "number some refused", "number some would"].into_iter().enumerate() {
                @for set in &rule.sets {
                    @let number = set.totals.and_then(|totals| totals.outcomes().get(outcome).copied());
                    td class=(if number > Some(0) { class } else { "number" }) { (dash(number.map(count))) }
                }
            }
            @for callers in CALLERS {
                @for set in &rule.sets {
                    @let callers = set.record.map(|record| callers(record).shown(count));
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

/// A rule by its name, in each of the sets.
struct RuleInSets<'s> {
    domain: &'s str,
    rule: &'s str,
    sets: Vec<RuleInSet<'s>>,
}

struct RuleInSet<'s> {
    set: &'s ReportSet<'s>,
    /// `None`: the set has no such rule.
    totals: Option<&'s RuleTotals>,
    /// `None`: no file in force has the rule.
    rule: Option<&'s Rule>,
    /// Counts per step, as in the summary.
    steps: Vec<[u64; 3]>,
    record: Option<&'s RuleRecord>,
    spread: Option<RuleDemand>,
}

/// The demand of the callers of a rule, and the rule's limit.
struct RuleDemand {
    shape: CallerDistribution,
    /// The number of callers by bar of their busiest window.
    bars: BTreeMap<(u64, u64), u64>,
    limit: u64,
}

/// Returns every rule of any set: those of the first in file order, then those that only another has.
fn rules_in_sets<'s>(sets: &'s [ReportSet<'s>]) -> Vec<RuleInSets<'s>> {
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
    fn has_counts(&self) -> bool {
        let mut outcomes = self.sets.iter().filter_map(|set| set.totals).flat_map(RuleTotals::outcomes);
        outcomes.any(|number| number > 0)
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

fn section(id: &str, rule: &RuleInSets<'_>) -> Markup {
    let most = highest(rule.sets.iter().flat_map(|set| &set.steps));
    let spreads = rule.sets.iter().filter_map(|set| set.spread.as_ref());
    // Both sets have the same scale: the last edge and the highest count.
    let scale = spreads.fold((2, 1), |(last, top), spread| {
        let last = spread.bars.keys().map(|(_, to)| *to).fold(last.max(bar_edges(spread.limit).1), u64::max);
        (last, spread.bars.values().copied().fold(top, u64::max))
    });
    // Two sets have a column each; the two charts of one set have a column each.
    let is_compared = rule.sets.len() > 1;
    html! {
        section.of-rule aria-labelledby=(id) {
            h2 id=(id) { (rule_name(rule.domain, rule.rule)) }
            div.columns {
                @for set in &rule.sets {
                    @let spread = set.spread.as_ref().map(|of| spread(set, of, scale)).unwrap_or(html! {});
                    div {
                        @if is_compared { h3.set { code { (set.set.name) } } }
                        @if set.totals.is_some() {
                            (quota(set))
                            (chart("What the rule did", CHECKS, set.set.course, &set.steps, most))
                            @if is_compared { (spread) }
                            (most_refused(set))
                        } @else {
                            p.none { "has no such rule" }
                        }
                    }
                    @if !is_compared { div { (spread) } }
                }
            }
        }
    }
}

fn quota(set: &RuleInSet<'_>) -> Markup {
    let Some(rule) = set.rule else { return html! {} };
    html! {
        p.facts {
            (numbers_or_unlimited(rule.limit.quota())) " " (each(rule))
            @if rule.overrides.is_some() { "; some callers have limits of their own" }
            @if rule.mode != Mode::Enforce { " " span class={ "badge " (rule.mode) } { (rule.mode) } }
        }
    }
}

/// Shows the distribution of callers beside the limit, the quantiles, and the number of callers above the limit.
fn spread(set: &RuleInSet<'_>, RuleDemand { shape, bars, limit }: &RuleDemand, scale: (u64, u64)) -> Markup {
    let window = span(Duration::from_nanos(shape.window_nanos));
    let unit = set.rule.and_then(|rule| rule.unit.as_deref()).unwrap_or(UNIT_REQUESTS);
    let (all, above) = (shape.busiest.len() as u64, count(shape.above(*limit) as u64));
    let (callers, most) = (counted(all, "caller", "callers"), count(*limit));
    let sentence = format!("{above} of {callers} asked for more than {most} in one {window}");
    let label = format!("Callers by what they asked for in their busiest {window}: {sentence}");
    let bars = bars.iter().map(|(edges, number)| (*edges, *number));
    let of_callers = (format!("a caller’s busiest {window}"), shape.quantiles());
    let rows = [of_callers, (format!("any {window} of a caller"), shape.windows)].map(|(name, values)| {
        html! { th scope="row" { (name) } @for value in values { td.number { (count(value)) } } }
    });
    html! {
        // One caller has no distribution.
        @if all > 1 {
            h4 { "Callers by the " (unit) " that they asked for in their busiest " (window) }
            (draw_bars(&label, bars, scale, (*limit, &format!("limit {most}"))))
            p.none {
                (sentence) "."
                @if shape.one_in > 1 { " There were too many: one in " (count(shape.one_in)) " was looked at." }
            }
        }
        (table("quantiles", "So much or less", &["in"], &QUANTILES.map(|(name, _)| name), rows.into_iter()))
    }
}

/// Shows the callers that the rule refused most, with the number of all.
fn most_refused(set: &RuleInSet<'_>) -> Markup {
    let details = set.record.and_then(|record| record.details.as_ref());
    let most = details.map(|details| details.most_refused.sorted()).unwrap_or_default();
    // A rule without a key has one caller without a text.
    if most.iter().all(|caller| most.len() == 1 && caller.text.is_empty()) {
        return html! {};
    }
    let more = set.record.map(|record| &record.refused).filter(|all| all.count().0 > most.len() as u64);
    let of_all = more.map(|all| format!(", {} of {}", most.len(), all.shown(count))).unwrap_or_default();
    let rows = most.iter().map(|caller| {
        html! {
            th scope="row" { (name(&caller.text)) }
            td.number {
                (count(caller.count))
                @if caller.error > 0 { " " span.quiet { "or up to " (count(caller.error)) " fewer" } }
            }
        }
    });
    table("most", &format!("Most refused{of_all}"), &["Caller"], &["refused"], rows)
}

/// A line's class in the style sheet, and its label.
type LineKind = (&'static str, &'static str);

fn highest<'s>(steps: impl Iterator<Item = &'s [u64; 3]>) -> u64 {
    steps.flatten().copied().max().unwrap_or_default()
}

/// Draws the counts of each kind on a scale up to `most`.
fn chart(title: &str, kinds: [LineKind; 3], course: &StepCounts, steps: &[[u64; 3]], most: u64) -> Markup {
    let Some(times) = course.times() else { return html! { p.none { "no request was replayed" } } };
    let sums = steps.iter().fold([0; 3], |[a, b, c], [x, y, z]| [a + x, b + y, c + z]);
    let mut lines: Vec<_> = kinds.into_iter().zip(sums).zip(0..).collect();
    let all = lines.iter().map(|(((_, name), sum), _)| format!("{} {name}", count(*sum)));
    let (all, step) = (all.collect::<Vec<_>>().join(", "), span(course.step()));
    let label = format!("{title} over time: {all}; at most {} in {step}", count(most));
    lines.retain(|((_, sum), kind)| *kind == 0 || *sum > 0);
    let key: Vec<LineKind> = lines.iter().map(|((kind, _), _)| *kind).collect();
    let lines: Vec<_> = lines.iter().map(|(((class, _), _), kind)| (*class, stairs(steps, *kind))).collect();
    let top = most.max(1);
    html! {
        (frame(
            [count(top), "0".to_owned()],
            &draw_lines("large", &label, steps.len() as f32, (0.0, top as f32), &lines),
            &times,
        ))
        (legend(&key))
        p.none { "in each " (step) }
    }
}

/// Returns a line that is constant over each step.
fn stairs(steps: &[[u64; 3]], kind: usize) -> Vec<(f32, f32)> {
    let values = steps.iter().map(|step| step.get(kind).copied().unwrap_or_default() as f32);
    let ends = (0..steps.len()).rev().map(|steps_after| steps_after as f32);
    ends.zip(values).flat_map(|(end, value)| [(end + 1.0, value), (end, value)]).collect()
}

const DECISIONS: [LineKind; 3] = [("passed", "allowed"), ("refused", "limited or denied"), ("shed", "shed")];

const CHECKS: [LineKind; 3] = [("passed", "passed"), ("refused", "refused"), ("would", "would refuse")];
