//! What can never be reached, where that can be told: a rule behind a list that takes all its requests, conditions
//! that cannot hold together. Only warnings come from here.

use std::collections::HashMap;
use std::sync::Arc;

use super::problem::{Problem, shown};
use super::source::{Place, Report, Source};
use super::{Condition, KeyPart, ListKind, Listed, Mode, Pattern, Position, Rule};

/// A rule that asks for an attribute and for its absence.
pub(super) fn about_rule(rule: &Rule, at: Place, report: &mut Report<'_>) {
    for part in &rule.key {
        let absent = |condition: &&Condition| condition.or_absent && condition.any_of.is_empty();
        let mut conditions = rule.conditions.iter().filter(|condition| condition.attribute == part.attribute);
        if conditions.any(|condition| absent(&condition)) {
            let name = shown(&part.attribute);
            let message =
                format!("{name} must be absent, and a request without it has no key: nothing matches");
            report.warning(at, message, format!("leave {name} out of `key`"));
        }
    }
}

/// Rules and entries of lists of which a list takes every request before they are looked at. It compares as long as
/// that is cheap: a domain with very many of both is not looked through to the end.
pub(super) fn covered(
    rules: &[Rule],
    lists: &[Listed],
    sources: &HashMap<&Arc<str>, &Source>,
    place: impl Fn(&str) -> Place,
) -> Vec<Problem> {
    let mut work = Work(COMPARISONS_MAX);
    let mut problems = Vec::new();
    let mut warn = |name: &str, position: &Position, by: &Listed| {
        let Some(source) = sources.get(&position.file) else { return };
        let message = match by.kind {
            ListKind::Exempt => "is never reached: all it matches is exempt by",
            ListKind::Deny => "is never reached: all it matches is denied by",
        };
        let mut report = Report::new(source);
        let message = format!("{} {message} {}", shown(name), shown(&by.name));
        report.warning(place(name), message, format!("remove it, or narrow the entry at {}", by.position));
        problems.extend(report.into_problems());
    };
    // One that takes everything has been told so itself.
    let exempt = |kind: ListKind| move |entry: &&Listed| entry.kind == kind && !entry.conditions.is_empty();
    let in_order: Vec<&Listed> = lists
        .iter()
        .filter(exempt(ListKind::Exempt))
        .chain(lists.iter().filter(exempt(ListKind::Deny)))
        .collect();
    // One in shadow takes nothing.
    let takes = |by: &&&Listed| by.mode == Mode::Enforce;
    for (place, entry) in in_order.iter().enumerate() {
        let mut before = in_order.iter().take(place).filter(takes);
        if let Some(by) = before.find(|by| work.covers(by, &entry.conditions, &[])) {
            warn(&entry.name, &entry.position, by);
        }
    }
    for rule in rules {
        let mut all = in_order.iter().filter(takes);
        if let Some(by) = all.find(|by| work.covers(by, &rule.conditions, &rule.key)) {
            warn(&rule.name, &rule.position, by);
        }
    }
    problems
}

/// How many more values may be compared.
struct Work(usize);

impl Work {
    /// Whether an entry takes everything that matches these conditions and has this key.
    fn covers(&mut self, entry: &Listed, conditions: &[Condition], key: &[KeyPart]) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
            && entry.conditions.iter().all(|wide| {
                match conditions.iter().find(|narrow| narrow.attribute == wide.attribute) {
                    Some(narrow) => self.holds_where(wide, narrow),
                    None => {
                        let has = key.iter().any(|part| part.attribute == wide.attribute);
                        has && wide.any_of.iter().any(Pattern::is_any)
                    }
                }
            })
    }

    /// Whether one condition holds wherever another does.
    fn holds_where(&mut self, wide: &Condition, narrow: &Condition) -> bool {
        self.0 = self.0.saturating_sub(wide.any_of.len().saturating_mul(narrow.any_of.len()));
        let holds = |pattern: &Pattern| match pattern.as_exact() {
            Some(value) => wide.holds(Some(value)),
            None => wide.any_of.iter().any(|wide| wide.is_any() || wide == pattern),
        };
        self.0 > 0 && (wide.or_absent || !narrow.or_absent) && narrow.any_of.iter().all(holds)
    }
}

/// A few hundredths of a second.
const COMPARISONS_MAX: usize = 1_000_000;
