//! Problems of files: message, position and help, shown as a report, as one line or as JSON.

use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};

use super::Position;
use super::source::Span;
use crate::terms::is_deceptive;

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(crate) severity: Severity,
    /// The position; line 0 means the file or directory itself.
    pub position: Position,
    /// The message, with the offending value. Lower case, no full stop.
    pub message: String,
    /// The help: the suggested repair.
    pub help: String,
    /// The line; `None` if the file could not be read or may not be quoted.
    pub line_text: Option<Excerpt>,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// The rule or domain is left out.
    Error,
    /// The rule works, but perhaps not as intended.
    Warning,
}

/// A line of a file, or the part of a long line around the span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The text, without its line end.
    pub text: Box<str>,
    /// Characters of the line cut off before the text.
    pub(crate) skipped: u32,
}

impl Problem {
    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Renders the problem: the message, the line with the span marked, and the help.
    pub fn render(&self, styled: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let position = &self.position;
        let mut group = level.primary_title(self.message.as_str()).elements(None::<Origin<'_>>);
        group = match &self.line_text {
            Some(excerpt) => {
                let snippet = Snippet::source(&*excerpt.text).line_start(position.line as usize);
                let marked = AnnotationKind::Primary.span(excerpt.marked(position.span));
                let snippet = snippet.annotation(marked);
                if excerpt.skipped == 0 {
                    group.element(snippet.path(&*position.file))
                } else {
                    // The renderer would count columns from the cut.
                    let origin = Origin::path(&*position.file).line(position.line as usize);
                    group.element(origin.char_column(position.column as usize)).element(snippet)
                }
            }
            None if position.line > 0 => {
                let origin = Origin::path(&*position.file).line(position.line as usize);
                group.element(origin.char_column(position.column as usize))
            }
            None => group.element(Origin::path(&*position.file)),
        };
        let group = group.element(Level::HELP.message(self.help.as_str()));
        let renderer = if styled { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group])
    }

    /// Converts the problem to a JSON object; keys without a value are null.
    pub fn to_json(&self) -> serde_json::Value {
        let place = |number: u32| (number > 0).then_some(number);
        serde_json::json!({
            "severity": self.severity.to_string(),
            "file": &*self.position.file,
            "line": place(self.position.line),
            "column": place(self.position.column),
            "message": self.message,
            "mend": self.help,
            "line_text": self.line_text.as_ref().map(|excerpt| &*excerpt.text),
        })
    }
}

/// One line, for logs.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {} ({})", self.position, self.severity, self.message, self.help)
    }
}

impl Excerpt {
    /// Returns the line around a span. Long lines are cut, so that thousands of errors on one line neither
    /// keep thousands of copies nor scan it thousands of times.
    pub(super) fn around(text: &str, at: Span) -> Excerpt {
        let (before, after) = text.split_at_checked(at.byte as usize).unwrap_or((text, ""));
        let column = at.column.saturating_sub(1);
        let kept = if column <= BEFORE_CHARACTERS { column } else { BEFORE_CHARACTERS / 2 };
        let start =
            before.char_indices().rev().take(kept as usize).last().map_or(before.len(), |(byte, _)| byte);
        let line = |character: &char| !matches!(character, '\n' | '\r');
        let after = after.chars().take_while(line).take(AFTER_CHARACTERS);
        let text: String = before.get(start..).unwrap_or_default().chars().chain(after).collect();
        Excerpt { text: text.into(), skipped: column - kept }
    }

    fn marked(&self, at: Span) -> std::ops::Range<usize> {
        let first = at.column.saturating_sub(1).saturating_sub(self.skipped) as usize;
        let byte_of = |character: usize| {
            self.text.char_indices().nth(character).map_or(self.text.len(), |(byte, _)| byte)
        };
        byte_of(first)..byte_of(first.saturating_add(at.width.max(1) as usize))
    }
}

/// A problem of one value whose position is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueProblem {
    pub(crate) message: String,
    pub(crate) help: String,
}

impl ValueProblem {
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> ValueProblem {
        ValueProblem { message: message.into(), help: help.into() }
    }
}

/// The message, and the help on the next line: the form that the deserializer reads.
impl fmt::Display for ValueProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.message, self.help)
    }
}

/// Quotes a text for messages: in backticks, on one line, shortened.
pub(crate) fn shown(text: &str) -> String {
    format!("`{}`", shortened(text, SHOWN_CHARACTERS))
}

/// Shows at most so many characters of a text, on one line.
pub(super) fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters).and_then(|(byte, _)| text.get(..byte)) {
        Some(start) => format!("{}…", on_one_line(start)),
        None => on_one_line(text),
    }
}

/// Escapes characters that hide, for terminals and logs.
pub(super) fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match is_deceptive(character) {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// Two lines of a wide terminal before the span and one after it.
const BEFORE_CHARACTERS: u32 = 200;
const AFTER_CHARACTERS: usize = 100;

/// The longest valid name.
const SHOWN_CHARACTERS: usize = 64;
