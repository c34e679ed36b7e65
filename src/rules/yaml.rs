//! The strict YAML reader: parses a text to a tree of values with spans.
//!
//! Field names, types and numbers are checked later, value by value, so that one error does not hide others.
//! Scalars keep their text: `0660` stays `0660`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::problem::{Problem, Severity, on_one_line};
use super::source::{Source, Span};

/// A value and its span.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode {
    /// The span of the value, or of the alias that inserted it.
    pub(crate) at: Span,
    /// The parsed value.
    pub value: Value,
}

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value, `null` or `~`.
    Null,
    /// A text, number or boolean, as written.
    Scalar(ScalarKind, Box<str>),
    /// A list.
    List(Vec<YamlNode>),
    /// Fields and their values in file order, including duplicates, which their reader reports.
    Map(Vec<(YamlNode, YamlNode)>),
    /// A number or boolean whose text is not fetched yet: start and length in bytes. [`read`] leaves none.
    Unsettled(ScalarKind, usize, usize),
}

/// The YAML type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarKind {
    /// A text: quoted, or of no other type.
    Text,
    /// An unquoted number.
    Number,
    /// Unquoted `true` or `false`.
    Boolean,
}

/// Parses a text. A text without content is [`Value::Null`].
///
/// # Errors
/// The first syntax error, a second document, an unknown anchor, or an exceeded limit of depth or size.
pub fn read(source: &Source) -> Result<YamlNode, Box<Problem>> {
    let text = source.text();
    let has_content = |line: &str| !line.is_empty() && !line.starts_with('#');
    if !text.lines().map(str::trim).any(has_content) {
        return Ok(YamlNode { at: Span::START, value: Value::Null });
    }
    let options = serde_saphyr::options! {
        strict_booleans: true,
        // Our readers report all duplicates, with the position of the first.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        reject_unsupported_tags: true,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: ALIASED_EVENTS_MAX,
            max_replay_stack_depth: DEPTH_MAX,
        },
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 2 * NODES_MAX,
            max_documents: 2,
            max_recorded_anchor_events: ALIASED_EVENTS_MAX,
            // Any number of rules may share a `match`; the bounds above limit the copies.
            enforce_alias_anchor_ratio: false,
        },
    };
    match serde_saphyr::from_str_with_options::<YamlNode>(text, options) {
        Ok(mut node) => {
            node.settle(text);
            Ok(node)
        }
        Err(error) => Err(Box::new(problem(source, &error))),
    }
}

impl YamlNode {
    /// Names the type of the value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Scalar(ScalarKind::Text, _) => "a text",
            Value::Scalar(ScalarKind::Number, _) | Value::Unsettled(..) => "a number",
            Value::Scalar(ScalarKind::Boolean, _) => "a boolean",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// Returns the text of a scalar of any type.
    pub fn as_scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(_, text) => Some(text),
            _ => None,
        }
    }

    /// Fetches the text of numbers and booleans, as the parser returns only their values.
    fn settle(&mut self, text: &str) {
        match &mut self.value {
            Value::Unsettled(kind, start, bytes) => {
                let written = text.get(*start..start.saturating_add(*bytes)).unwrap_or_default();
                // A tag can turn a quoted text into a number.
                let written = written.trim().trim_matches(['"', '\'']);
                self.value = Value::Scalar(*kind, written.into());
            }
            Value::List(items) => items.iter_mut().for_each(|item| item.settle(text)),
            Value::Map(pairs) => {
                for (key, value) in pairs {
                    key.settle(text);
                    value.settle(text);
                }
            }
            Value::Null | Value::Scalar(..) => {}
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlNode, D::Error> {
        let Spanned { mut value, referenced, defined } = Spanned::deserialize(deserializer)?;
        if let Value::Unsettled(_, start, bytes) = &mut value {
            let span = defined.span();
            let offset = |byte: Option<u64>| byte.and_then(|byte| usize::try_from(byte).ok());
            let span_of = offset(span.byte_offset()).zip(offset(span.byte_len()));
            (*start, *bytes) = span_of.ok_or_else(|| D::Error::custom("a number without a place"))?;
        }
        Ok(YamlNode { at: span_of(referenced), value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(WrittenVisitor)
    }
}

struct WrittenVisitor;

/// Implements visits of numbers and booleans, whose text is fetched later.
macro_rules! visit_unsettled {
    ($($visit:ident($type:ty) => $kind:ident),*) => {$(
        fn $visit<E>(self, _: $type) -> Result<Value, E> {
            Ok(Value::Unsettled(ScalarKind::$kind, 0, 0))
        }
    )*};
}

impl<'de> Visitor<'de> for WrittenVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    visit_unsettled! {
        visit_bool(bool) => Boolean, visit_i64(i64) => Number, visit_u64(u64) => Number, visit_i128(i128) => Number,
        visit_u128(u128) => Number, visit_f64(f64) => Number
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Scalar(ScalarKind::Text, text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Map(pairs))
    }
}

fn span_of(location: Location) -> Span {
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).max(1);
    Span {
        line: count(location.line()),
        column: count(location.column()),
        width: count(location.span().len()),
        byte: location.span().byte_offset().map_or(0, |byte| u32::try_from(byte).unwrap_or(0)),
    }
}

fn problem(source: &Source, error: &Error) -> Problem {
    let mut at = error.location().map_or(Span::START, span_of);
    // Errors of the parser itself lack the byte offset.
    at.byte = source.byte_of(at.line, at.column);
    let cause = match error.without_snippet() {
        Error::AliasError { error, .. } => error.without_snippet(),
        error => error,
    };
    let message = match cause {
        Error::MultipleDocuments { .. } => "a second document in the file".to_owned(),
        Error::UnknownAnchor { .. } => "`*` starts an alias, and no anchor has this name".to_owned(),
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => {
            "too much for one file, or its aliases bring too much".to_owned()
        }
        // It may quote the file.
        _ => on_one_line(&UserMessageFormatter.format_message(cause)),
    };
    if message.contains("found a tab") {
        at = tab_from(source.text(), at);
    }
    let help = HELPS.iter().find(|(part, _)| message.contains(part)).map_or(HELP_OTHERWISE, |(_, help)| help);
    source.problem(Severity::Error, at, message, (*help).to_owned())
}

/// Returns the place of the first tab from a place on: the parser names the start of the text that it ends.
fn tab_from(text: &str, at: Span) -> Span {
    let after = text.get(at.byte as usize..).and_then(|rest| rest.split_once('\t'));
    let Some((between, _)) = after else { return at };
    let (lines, last) = between.rsplit_once('\n').map_or((0, between), |(lines, last)| {
        (u32::try_from(lines.matches('\n').count()).unwrap_or(0) + 1, last)
    });
    let before = if lines == 0 { at.column - 1 } else { 0 };
    let column = before + u32::try_from(last.chars().count()).unwrap_or(0) + 1;
    let byte = at.byte + u32::try_from(between.len()).unwrap_or(0);
    Span { line: at.line + lines, column, width: 1, byte }
}

/// Help by a part of the message.
const HELPS: [(&str, &str); 9] = [
    ("expected ':'", "write a colon and a space after the name of a field, and its value"),
    ("did not find expected key", "check the indentation of this line and of the line above it"),
    ("second document", "remove the `---`, or put the rest into another file"),
    ("too much", "split the file: several files may add to one domain; write less with aliases"),
    ("alias", "write patterns in quotes, such as \"*.example.com\"; an alias needs its `&anchor` before it"),
    ("tab", "indent with spaces"),
    ("recursion limit", "nest less: no rule is this deep"),
    ("tag", "leave the tag out; a text that starts with `!` goes in quotes"),
    ("merge", "write `<<: *anchor`, the anchor being on a mapping"),
];

const HELP_OTHERWISE: &str = "check the indentation, the quotes and the brackets up to here";

/// A descriptor tree of the maximum of 16 entries needs 36. The tree is walked recursively.
const DEPTH_MAX: usize = 40;

/// 100 000 rules of 20 values each.
const NODES_MAX: usize = 2_000_000;

/// Bounds the events that aliases add: a few bytes must not become gigabytes.
const ALIASED_EVENTS_MAX: usize = 200_000;
