//! What a test expects of one decision, and what of the decision is otherwise.

use crate::clock::Micros;
use crate::engine::{Decision, NoteKind, Verdict};
use crate::rules::shown;

/// What is expected; what is not said may be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) verdict: Verdict,
    /// Inside, `None` is never.
    pub(super) retry: Option<Option<Micros>>,
    pub(super) left: Option<u64>,
    /// Inside, `None` is that no limit matched.
    pub(super) rule: Option<Option<String>>,
    /// Inside, `None` is that the domain has no priorities.
    pub(super) priority: Option<Option<String>>,
    /// Each a kind and a rule, in the order of the file.
    pub(super) notes: Option<Vec<(String, String)>>,
}

impl Expected {
    /// A verdict, and nothing else.
    pub(super) fn new(verdict: Verdict) -> Expected {
        Expected { verdict, retry: None, left: None, rule: None, priority: None, notes: None }
    }

    /// What of a decision is otherwise, in words. Of one with another verdict only that is told: the rest follows.
    pub(super) fn differences(&self, decision: &Decision<'_>) -> Vec<String> {
        if decision.verdict != self.verdict {
            return vec![format!("expected {}, got {}", name(self.verdict), described(decision))];
        }
        let mut wrong = Vec::new();
        let mut compare = |what: &str, expected: Option<String>, got: String| {
            if let Some(expected) = expected.filter(|expected| *expected != got) {
                wrong.push(format!("expected {what}={expected}, got {got}"));
            }
        };
        compare("retry", self.retry.map(span), span(decision.retry));
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

/// A verdict by its name.
pub(super) fn verdict(name_of: &str) -> Option<Verdict> {
    VERDICTS.into_iter().find(|verdict| name(*verdict) == name_of)
}

/// As the socket says it.
pub(super) fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Limit => "limit",
        Verdict::Wait => "wait",
        Verdict::Deny => "deny",
        Verdict::Shed => "shed",
    }
}

/// Whether this is the name of a kind of note.
pub(super) fn is_note(name: &str) -> bool {
    NoteKind::ALL.into_iter().any(|kind| kind.name() == name)
}

/// The rule, the entry of a list or the shedder that the answer names.
fn rule(decision: &Decision<'_>) -> Option<String> {
    decision.rule_name().map(ToString::to_string)
}

fn described(decision: &Decision<'_>) -> String {
    let mut text = name(decision.verdict).to_owned();
    if let Some(rule) = rule(decision) {
        text.push_str(&format!(" by {}", shown(&rule)));
    }
    if let Some(view) = &decision.binding {
        text.push_str(&format!(", left={}", view.level.remaining));
    }
    if matches!(decision.verdict, Verdict::Limit | Verdict::Wait | Verdict::Shed) {
        text.push_str(&format!(", retry={}", span(decision.retry)));
    }
    text
}

/// Without spaces, as it is written on a line of a test.
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

/// How a test writes that there is none.
pub(super) const NOTHING: &str = "-";

/// How a test writes that no wait is long enough.
pub(super) const NEVER: &str = "never";

const VERDICTS: [Verdict; 5] = [Verdict::Allow, Verdict::Limit, Verdict::Wait, Verdict::Deny, Verdict::Shed];
