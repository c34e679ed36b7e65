//! The section of one rule: its quota, counts over time, and callers; two sets side by side.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use maud::{Markup, html};

use super::{ReportSet, course};
use crate::engine::{RuleTotals, UNIT_REQUESTS};
use crate::page::{bar_edges, count, counted, draw_bars, name, rule_name, span, table};
use crate::rules::words::{each, numbers_or_unlimited};
use crate::rules::{Mode, Rule};
use crate::trace::comparison::NUMBERS;
use crate::trace::spread::{QUANTILES, Shape};
use crate::trace::summary::rules;

/// A rule by its name, in each of the sets.
pub(super) struct RuleRow<'s> {
    pub(super) id: String,
    domain: &'s str,
    rule: &'s str,
    pub(super) sets: Vec<OfSet<'s>>,
}

/// A rule in one set.
pub(super) struct OfSet<'s> {
    set: &'s ReportSet<'s>,
    /// `None`: the set has no such rule.
    pub(super) totals: Option<&'s RuleTotals>,
    /// `None`: no file in force has the rule.
    rule: Option<&'s Rule>,
}

/// The callers of a rule in one set: their number by bar of their busiest window, and the rule's limit.
struct Spread {
    shape: Shape,
    bars: BTreeMap<(u64, u64), u64>,
    limit: u64,
}

/// Returns every rule of any set: those of the first in file order, then those that only another has.
pub(super) fn rows<'s>(sets: &[&'s ReportSet<'s>]) -> Vec<RuleRow<'s>> {
    let mut known = HashSet::new();
    let all = sets.iter().flat_map(|set| rules(&set.totals));
    let all = all.filter(|totals| known.insert((&totals.domain, &totals.rule))).enumerate();
    let row = |(number, totals): (usize, &'s RuleTotals)| RuleRow {
        id: format!("rule-{}", number + 1),
        domain: &totals.domain,
        rule: &totals.rule,
        sets: sets.iter().map(|set| OfSet::new(set, &totals.domain, &totals.rule)).collect(),
    };
    all.map(row).collect()
}

impl RuleRow<'_> {
    pub(super) fn name(&self) -> Markup {
        rule_name(self.domain, self.rule)
    }

    pub(super) fn has_counts(&self) -> bool {
        let has_counts = |rule: &RuleTotals| NUMBERS.iter().any(|number| number(rule) > 0);
        self.sets.iter().filter_map(|set| set.totals).any(has_counts)
    }

    pub(super) fn section(&self) -> Markup {
        let steps: Vec<_> = self.sets.iter().map(OfSet::steps).collect();
        let spreads: Vec<_> = self.sets.iter().map(OfSet::spread).collect();
        let most = course::most(steps.iter().flatten().copied());
        let scale = spreads.iter().flatten().fold((2, 1), |(last, top), spread: &Spread| {
            let bars = spread.bars.iter().map(|((_, to), number)| (*to, *number));
            bars.fold((last.max(bar_edges(spread.limit).1), top), |(last, top), (to, number)| {
                (last.max(to), top.max(number))
            })
        });
        // Two sets have a column each; the two charts of one set have a column each.
        let is_compared = self.sets.len() > 1;
        html! {
            section.of-rule aria-labelledby=(self.id) {
                h2 id=(self.id) { (self.name()) }
                div.columns {
                    @for ((of, steps), spread) in self.sets.iter().zip(&steps).zip(&spreads) {
                        @let spread = spread.as_ref().map(|spread| of.spread_section(spread, scale));
                        div {
                            @if is_compared { h3.set { code { (of.set.name) } } }
                            @if of.totals.is_none() {
                                p.none { "has no such rule" }
                            } @else {
                                (of.quota())
                                (course::chart("What the rule did", course::CHECKS, &of.set.watch.course, steps, most))
                                @if is_compared { @if let Some(spread) = &spread { (spread) } }
                                (of.most_refused())
                            }
                        }
                        @if !is_compared { div { @if let Some(spread) = &spread { (spread) } } }
                    }
                }
            }
        }
    }
}

impl<'s> OfSet<'s> {
    fn new(set: &'s ReportSet<'s>, domain: &str, rule: &str) -> OfSet<'s> {
        let totals = rules(&set.totals).find(|totals| *totals.domain == *domain && *totals.rule == *rule);
        let domain = set.player.rules().iter().find(|known| known.name() == domain);
        let rule = domain.and_then(|domain| domain.rules().iter().find(|known| *known.name == *rule));
        OfSet { set, totals, rule }
    }

    /// Returns the number of callers, and of those that it refused or would have.
    pub(super) fn callers(&self) -> [String; 2] {
        let Some(RuleTotals { domain, rule, .. }) = self.totals else {
            return ["–", "–"].map(str::to_owned);
        };
        let Some(all) = self.set.player.callers().count(domain, rule) else { return Default::default() };
        [all, self.set.watch.refused.count(domain, rule)].map(at_least)
    }

    fn place(&self) -> Option<usize> {
        let totals = self.totals?;
        self.set.watch.places.find(&totals.domain, &totals.rule)
    }

    fn spread(&self) -> Option<Spread> {
        let limit = self.rule?.limit.quota()?.limit().into();
        let shape = self.set.watch.spread.shape(self.place()?)?;
        let mut bars = BTreeMap::new();
        shape.busiest.iter().for_each(|most| *bars.entry(bar_edges(*most)).or_default() += 1);
        Some(Spread { shape, bars, limit })
    }

    /// Counts per step, as in the summary.
    fn steps(&self) -> Vec<[u64; 3]> {
        let totals = self.totals;
        totals.map(|totals| self.set.watch.course.of(&totals.domain, &totals.rule)).unwrap_or_default()
    }

    /// Shows the rule's quota and mode.
    fn quota(&self) -> Markup {
        let Some(rule) = self.rule else { return html! {} };
        html! {
            p.facts {
                (numbers_or_unlimited(rule.limit.quota())) " " (each(rule))
                @if rule.overrides.is_some() { "; some callers have limits of their own" }
                @if rule.mode != Mode::Enforce { " " span class={ "badge " (rule.mode) } { (rule.mode) } }
            }
        }
    }

    /// Shows the distribution of callers beside the limit, the quantiles, and the number of callers above the limit.
    fn spread_section(&self, Spread { shape, bars, limit }: &Spread, scale: (u64, u64)) -> Markup {
        let window = span(Duration::from_nanos(shape.window_nanos));
        let all = shape.busiest.len() as u64;
        let sentence = format!(
            "{} of {} asked for more than {} in one {window}",
            count(shape.above(*limit) as u64),
            counted(all, "caller", "callers"),
            count(*limit),
        );
        let unit = self.rule.and_then(|rule| rule.unit.as_deref()).unwrap_or(UNIT_REQUESTS);
        let label = format!("Callers by what they asked for in their busiest {window}: {sentence}");
        let mark = (*limit, &*format!("limit {}", count(*limit)));
        let bars = bars.iter().map(|(edges, number)| (*edges, *number));
        let rows = [
            (format!("a caller’s busiest {window}"), shape.quantiles()),
            (format!("any {window} of a caller"), shape.windows),
        ];
        let rows = rows.map(|(name, values)| {
            html! { th scope="row" { (name) } @for value in values { td.number { (count(value)) } } }
        });
        let quantiles = QUANTILES.map(|(name, _)| ("number", name));
        let headings: Vec<_> = [("", "in")].into_iter().chain(quantiles).collect();
        html! {
            // One caller has no distribution.
            @if all > 1 {
                h4 { "Callers by the " (unit) " that they asked for in their busiest " (window) }
                (draw_bars(&label, bars, scale, mark))
                p.none {
                    (sentence) "."
                    @if shape.one_in > 1 { " There were too many: one in " (count(shape.one_in)) " was looked at." }
                }
            }
            (table("quantiles", "So much or less", &headings, rows))
        }
    }

    /// Shows the callers that the rule refused most, with the number of all.
    fn most_refused(&self) -> Markup {
        let Some((place, totals)) = self.place().zip(self.totals) else { return html! {} };
        let most = self.set.watch.refused.most(place);
        let (all, more) = self.set.watch.refused.count(&totals.domain, &totals.rule);
        // A rule without a key has one caller without a text.
        if most.iter().all(|caller| most.len() == 1 && caller.text.is_empty()) {
            return html! {};
        }
        let caption = html! {
            "Most refused"
            @if all > most.len() as u64 { ", " (most.len()) " of " (at_least((all, more))) }
        };
        let rows = most.iter().map(|caller| {
            html! {
                th scope="row" { (name(&caller.text)) }
                td.number {
                    (count(caller.count))
                    @if caller.error > 0 { " " span.quiet { "or up to " (count(caller.error)) " fewer" } }
                }
            }
        });
        table("most", caption, &[("", "Caller"), ("number", "refused")], rows)
    }
}

/// Formats a count that may be larger.
fn at_least((number, more): (u64, bool)) -> String {
    count(number) + if more { "+" } else { "" }
}
