//! The expected decision of a request, and its differences from the actual one.

use crate::clock::Micros;
use crate::engine::{Decision, NoteKind, Verdict};
use crate::rules::shown;

/// The expected decision; a field that is `None` may have any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpectedDecision {
    pub(super) verdict: Verdict,
    /// `Some(None)` is never.
    pub(super) retry: Option<Option<Micros>>,
    pub(super) left: Option<u64>,
    /// `Some(None)`: no limit matched.
    pub(super) rule: Option<Option<String>>,
    /// `Some(None)`: the domain has no priorities.
    pub(super) priority: Option<Option<String>>,
    /// Kinds and rules, in file order.
    pub(super) notes: Option<Vec<(String, String)>>,
}

impl ExpectedDecision {
    pub(super) fn new(verdict: Verdict) -> ExpectedDecision {
        ExpectedDecision { verdict, retry: None, left: None, rule: None, priority: None, notes: None }
    }

    /// Describes the differences of a decision. A wrong verdict is reported alone, as it causes the others.
    pub(super) fn differences(&self, decision: &Decision<'_>) -> Vec<String> {
        if decision.verdict != self.verdict {
            return vec![format!("expected {}, got {}", self.verdict.name(), described(decision))];
        }
        let mut wrong = Vec::new();
        let mut compare = |what: &str, expected: Option<String>, got: String| {
            if let Some(expected) = expected.filter(|expected| *expected != got) {
                wrong.push(format!("expected {what}={expected}, got {got}"));
            }
        };
        compare("retry", self.retry.map(span), span(decision.retry_after));
        let left = decision.binding.map(|view| view.level.remaining.to_string());
        compare("left", self.left.map(|left| left.to_string()), left.unwrap_or_else(nothing));
        compare("rule", self.rule.clone().map(or_nothing), or_nothing(rule(decision)));
        compare(
            "priority",
            self.priority.clone().map(or_nothing),
            or_nothing(decision.priority.map(str::to_owned)),
        );
        let notes = decision
            .notes()
            .map(|(kind, rule)| (kind.name().to_owned(), rule.to_owned()))
            .collect::<Vec<_>>();
        compare("notes", self.notes.as_deref().map(notes_text), notes_text(&notes));
        wrong
    }
}

pub(super) fn verdict(name_of: &str) -> Option<Verdict> {
    name_of.parse().ok()
}

pub(super) fn is_note(name: &str) -> bool {
    name.parse::<NoteKind>().is_ok()
}

/// Returns the rule, list entry or shedding rule that the decision names.
fn rule(decision: &Decision<'_>) -> Option<String> {
    decision.rule_name().map(ToString::to_string)
}

fn described(decision: &Decision<'_>) -> String {
    let mut text = decision.verdict.name().to_owned();
    if let Some(rule) = rule(decision) {
        text.push_str(&format!(" by {}", shown(&rule)));
    }
    if let Some(view) = &decision.binding {
        text.push_str(&format!(", left={}", view.level.remaining));
    }
    if matches!(decision.verdict, Verdict::Limit | Verdict::Wait | Verdict::Shed) {
        text.push_str(&format!(", retry={}", span(decision.retry_after)));
    }
    text
}

/// Formats a span without spaces, as in a line of a test.
fn span(of: Option<Micros>) -> String {
    of.map_or_else(|| NEVER.to_owned(), |micros| micros.to_string().replace(' ', ""))
}

fn notes_text(notes: &[(String, String)]) -> String {
    match notes {
        [] => nothing(),
        notes => notes.iter().map(|(kind, rule)| format!("{kind}:{rule}")).collect::<Vec<_>>().join(","),
    }
}

fn or_nothing(text: Option<String>) -> String {
    text.unwrap_or_else(nothing)
}

fn nothing() -> String {
    NOTHING.to_owned()
}

/// How a test writes an absent value.
pub(super) const NOTHING: &str = "-";

/// How a test writes an infinite retry-after.
pub(super) const NEVER: &str = "never";
