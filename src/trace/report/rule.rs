//! The section of one rule: its quota, counts over time, and callers; two sets side by side.

use std::fmt::Write;

use super::callers::{self, CallersReport, ChartScale};
use super::{ReportSet, course};
use crate::engine::{RuleTotals, UNIT_REQUESTS};
use crate::page::{EscapedText, IsolatedName, count};
use crate::rules::words::{each, numbers_or_unlimited};
use crate::rules::{Mode, Rule};
use crate::trace::comparison::NUMBERS;
use crate::trace::summary::rules;

/// A rule by its name, in each of the sets.
pub(super) struct RuleRow<'s> {
    number: usize,
    domain: &'s str,
    rule: &'s str,
    pub(super) sets: Vec<OfSet<'s>>,
}

/// A rule in one set.
pub(super) struct OfSet<'s> {
    told: &'s ReportSet<'s>,
    /// `None`: the set has no such rule.
    pub(super) totals: Option<&'s RuleTotals>,
    /// `None`: no file in force has the rule.
    rule: Option<&'s Rule>,
}

/// Every rule of any set: those of the first in file order, then those that only another has.
pub(super) fn rows<'s>(sets: &[&'s ReportSet<'s>]) -> Vec<RuleRow<'s>> {
    let mut rows: Vec<RuleRow<'s>> = Vec::new();
    let of_all = sets.iter().flat_map(|set| rules(&set.totals));
    let mut known = std::collections::HashSet::new();
    for totals in of_all.filter(|rule| known.insert((&rule.domain, &rule.rule))) {
        let of_set = |told: &&'s ReportSet<'s>| OfSet::new(told, &totals.domain, &totals.rule);
        rows.push(RuleRow {
            number: rows.len() + 1,
            domain: &totals.domain,
            rule: &totals.rule,
            sets: sets.iter().map(of_set).collect(),
        });
    }
    rows
}

impl<'s> RuleRow<'s> {
    pub(super) fn id(&self) -> String {
        format!("rule-{}", self.number)
    }

    pub(super) fn name(&self) -> String {
        match self.domain {
            "" => "all others together".to_owned(),
            domain => {
                format!("<span class=\"domain\">{}/</span>{}", IsolatedName(domain), IsolatedName(self.rule))
            }
        }
    }

    pub(super) fn saw_something(&self) -> bool {
        let saw = |rule: &&RuleTotals| NUMBERS.iter().any(|number| number(rule) > 0);
        self.sets.iter().filter_map(|set| set.totals.as_ref()).any(saw)
    }
}

impl<'s> OfSet<'s> {
    fn new(told: &'s ReportSet<'s>, domain: &str, rule: &str) -> OfSet<'s> {
        let totals = rules(&told.totals).find(|totals| *totals.domain == *domain && *totals.rule == *rule);
        let of_domain = told.player.rules().iter().find(|known| known.name() == domain);
        let rule = of_domain.and_then(|domain| domain.rules().iter().find(|known| *known.name == *rule));
        OfSet { told, totals, rule }
    }

    pub(super) fn callers(&self) -> String {
        let Some(totals) = self.totals else { return "–".to_owned() };
        shown(self.told.player.callers().count(&totals.domain, &totals.rule))
    }

    /// The number of callers that it refused or would have.
    pub(super) fn refused_callers(&self) -> String {
        let Some(totals) = self.totals else { return "–".to_owned() };
        let callers = self.told.player.callers().count(&totals.domain, &totals.rule);
        shown(callers.map(|_| self.told.watch.refused.count(&totals.domain, &totals.rule)))
    }

    fn place(&self) -> Option<usize> {
        let totals = self.totals?;
        self.told.watch.places.find(&totals.domain, &totals.rule)
    }

    fn spread(&self) -> Option<CallersReport> {
        let quota = self.rule?.limit.quota()?;
        let shape = self.told.watch.spread.shape(self.place()?)?;
        let unit = self.rule?.unit.as_deref().unwrap_or(UNIT_REQUESTS);
        Some(CallersReport { shape, limit: u64::from(quota.limit()), unit: unit.to_owned() })
    }

    /// Counts per step, as in the summary.
    fn steps(&self) -> Vec<[u64; 3]> {
        let totals = self.totals;
        totals.map(|totals| self.told.watch.course.of(&totals.domain, &totals.rule)).unwrap_or_default()
    }

    /// The rule's quota and mode.
    fn terms(&self) -> String {
        let Some(rule) = self.rule else { return String::new() };
        let mode = match rule.mode {
            Mode::Enforce => String::new(),
            mode => format!(" <span class=\"badge {mode}\">{mode}</span>"),
        };
        let numbers = numbers_or_unlimited(rule.limit.quota());
        let others = if rule.overrides.is_some() { "; some callers have limits of their own" } else { "" };
        format!("<p class=\"facts\">{} {}{others}{mode}</p>", EscapedText(&numbers), EscapedText(&each(rule)))
    }
}

pub(super) fn write(page: &mut String, row: &RuleRow<'_>, sets: &[&ReportSet<'_>]) {
    let id = row.id();
    let _ = write!(
        page,
        "<section aria-labelledby=\"{id}\" class=\"of-rule\"><h2 id=\"{id}\">{}</h2>",
        row.name()
    );
    let steps: Vec<Vec<[u64; 3]>> = row.sets.iter().map(OfSet::steps).collect();
    let most = course::most(steps.iter().flatten().copied());
    let spreads: Vec<Option<CallersReport>> = row.sets.iter().map(OfSet::spread).collect();
    let scale = ChartScale::of(spreads.iter().flatten());
    // Two sets have a column each; the two pictures of one set have a column each.
    let is_compared = sets.len() > 1;
    page.push_str("<div class=\"columns\">");
    for ((of, steps), spread) in row.sets.iter().zip(&steps).zip(&spreads) {
        page.push_str("<div>");
        if is_compared {
            let _ = write!(page, "<h3 class=\"set\"><code>{}</code></h3>", EscapedText(of.told.name));
        }
        if of.totals.is_none() {
            page.push_str("<p class=\"none\">has no such rule</p></div>");
            continue;
        }
        page.push_str(&of.terms());
        course::rule(page, &of.told.watch.course, steps, most);
        let mut parts = [String::new(), String::new()];
        let [spread_out, most] = &mut parts;
        if let Some(spread) = spread {
            callers::write(spread_out, spread, &scale);
        }
        if let Some((place, totals)) = of.place().zip(of.totals) {
            let refused = &of.told.watch.refused;
            callers::most_refused(most, &refused.most(place), refused.count(&totals.domain, &totals.rule));
        }
        let [spread_out, most] = parts;
        page.push_str(&if is_compared {
            spread_out + &most
        } else {
            format!("{most}</div><div>{spread_out}")
        });
        page.push_str("</div>");
    }
    page.push_str("</div></section>");
}

fn shown(callers: Option<(u64, bool)>) -> String {
    callers.map_or_else(String::new, |(callers, more)| count(callers) + if more { "+" } else { "" })
}
