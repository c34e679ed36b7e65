//! The section of one rule: its quota, counts over time, and callers; two sets side by side.

use std::time::Duration;

use maud::{Markup, html};

use super::course;
use crate::engine::UNIT_REQUESTS;
use crate::page::{bar_edges, count, counted, draw_bars, name, rule_name, span, table};
use crate::rules::Mode;
use crate::rules::words::{each, numbers_or_unlimited};
use crate::trace::rule_in_sets::{RuleDemand, RuleInSet, RuleInSets};
use crate::trace::rule_records::RuleRecord;
use crate::trace::spread::QUANTILES;

pub(super) fn section(id: &str, rule: &RuleInSets<'_>) -> Markup {
    let most = course::most(rule.sets.iter().flat_map(|set| &set.steps));
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
                            (course::chart("What the rule did", course::CHECKS, set.set.course, &set.steps, most))
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

/// Shows the quota and the mode of a rule.
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
    let most = set.record.map(RuleRecord::most_refused).unwrap_or_default();
    // A rule without a key has one caller without a text.
    if most.iter().all(|caller| most.len() == 1 && caller.text.is_empty()) {
        return html! {};
    }
    let all = set.record.map(|record| record.refused.count()).filter(|(all, _)| *all > most.len() as u64);
    let of_all = all.map(|all| format!(", {} of {}", most.len(), at_least(all))).unwrap_or_default();
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

/// Formats a count that may be larger.
pub(super) fn at_least((number, more): (u64, bool)) -> String {
    count(number) + if more { "+" } else { "" }
}
