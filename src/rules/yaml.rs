//! The strict YAML reader: a text becomes a tree in which every value knows where it stands.
//!
//! It means nothing yet: names of fields, types and numbers are judged by who knows them, each value on its own, so
//! that one error hides no other. Scalars keep the text that was written: `0660` stays `0660`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Error, Location, MessageFormatter, Spanned, UserMessageFormatter};

use super::problem::{Problem, Severity, on_one_line};
use super::source::{Place, Source};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it was written; for what an alias brought, where the alias is.
    pub at: Place,
    /// What was written.
    pub value: Value,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, `null` or `~`.
    Null,
    /// A text, or what YAML takes for a number or a boolean, as it was written.
    Scalar(Kind, Box<str>),
    /// A list.
    List(Vec<Node>),
    /// Fields and their values in file order. A key may come twice: its reader says so.
    Map(Vec<(Node, Node)>),
    /// A number or boolean whose text is still to be fetched from the file; none is left after [`read`].
    Unsettled(Kind, usize, usize),
}

/// What YAML takes a scalar for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text: quoted, or not readable as anything else.
    Text,
    /// A number without quotes.
    Number,
    /// `true` or `false` without quotes.
    Boolean,
}

/// Reads a text. One without any content is [`Value::Null`].
///
/// # Errors
/// The first place that is not YAML as it is read here: one document, no unknown anchor, not too deep or too large.
pub fn read(source: &Source) -> Result<Node, Box<Problem>> {
    let text = source.text();
    let has_content = |line: &str| !line.is_empty() && !line.starts_with('#');
    if !text.lines().map(str::trim).any(has_content) {
        return Ok(Node { at: Place::START, value: Value::Null });
    }
    let options = serde_saphyr::options! {
        strict_booleans: true,
        // Our own readers report duplicates, all of them, with the first place.
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
            // A shared `match` is used by as many rules as there are; what aliases copy is bounded above.
            enforce_alias_anchor_ratio: false,
        },
    };
    match serde_saphyr::from_str_with_options::<Node>(text, options) {
        Ok(mut node) => {
            node.settle(text);
            Ok(node)
        }
        Err(error) => Err(Box::new(problem(source, &error))),
    }
}

impl Node {
    /// What the value is, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Scalar(Kind::Text, _) => "a text",
            Value::Scalar(Kind::Number, _) | Value::Unsettled(..) => "a number",
            Value::Scalar(Kind::Boolean, _) => "a boolean",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// The text of a scalar, whatever YAML takes it for.
    #[must_use]
    pub fn as_scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(_, text) => Some(text),
            _ => None,
        }
    }

    /// Fetches the text of numbers and booleans: the parser hands over what it made of them.
    fn settle(&mut self, text: &str) {
        match &mut self.value {
            Value::Unsettled(kind, start, bytes) => {
                let written = text.get(*start..start.saturating_add(*bytes)).unwrap_or_default();
                // A tag can make a number of a quoted text.
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

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        let Spanned { value: Written(mut value), referenced, defined } = Spanned::deserialize(deserializer)?;
        if let Value::Unsettled(_, start, bytes) = &mut value {
            let span = defined.span();
            let offset = |byte: Option<u64>| byte.and_then(|byte| usize::try_from(byte).ok());
            let place = offset(span.byte_offset()).zip(offset(span.byte_len()));
            (*start, *bytes) = place.ok_or_else(|| D::Error::custom("a number without a place"))?;
        }
        Ok(Node { at: place(referenced), value })
    }
}

/// A value that does not know yet where it stands.
struct Written(Value);

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Written, D::Error> {
        deserializer.deserialize_any(WrittenVisitor).map(Written)
    }
}

struct WrittenVisitor;

impl<'de> Visitor<'de> for WrittenVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Unsettled(Kind::Boolean, 0, 0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Unsettled(Kind::Number, 0, 0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Unsettled(Kind::Number, 0, 0))
    }

    fn visit_i128<E>(self, _: i128) -> Result<Value, E> {
        Ok(Value::Unsettled(Kind::Number, 0, 0))
    }

    fn visit_u128<E>(self, _: u128) -> Result<Value, E> {
        Ok(Value::Unsettled(Kind::Number, 0, 0))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Unsettled(Kind::Number, 0, 0))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Scalar(Kind::Text, text.into()))
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

fn place(location: Location) -> Place {
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).max(1);
    Place {
        line: count(location.line()),
        column: count(location.column()),
        width: count(location.span().len()),
        byte: location.span().byte_offset().map_or(0, |byte| u32::try_from(byte).unwrap_or(0)),
    }
}

fn problem(source: &Source, error: &Error) -> Problem {
    let mut at = error.location().map_or(Place::START, place);
    // Errors of the parser itself come without it.
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
    let mend = MENDS.iter().find(|(part, _)| message.contains(part)).map_or(MEND_OTHERWISE, |(_, mend)| mend);
    source.problem(Severity::Error, at, message, Some(mend.to_owned()))
}

/// What helps, by a part of the message.
const MENDS: [(&str, &str); 7] = [
    ("second document", "remove the `---`, or put the rest into another file"),
    ("too much", "split the file: several files may add to one domain; write less with aliases"),
    ("alias", "write patterns in quotes, such as \"*.example.com\"; an alias needs its `&anchor` before it"),
    ("tab", "indent with spaces"),
    ("recursion limit", "nest less: no rule is this deep"),
    ("tag", "leave the tag out; a text that starts with `!` goes in quotes"),
    ("merge", "write `<<: *anchor`, the anchor being on a mapping"),
];

const MEND_OTHERWISE: &str = "check the indentation, the quotes and the brackets up to here";

/// A descriptor tree as deep as a request can be, 16 entries, takes 36; what is read is walked by recursion.
const DEPTH_MAX: usize = 40;

/// 100 000 rules of 20 values each.
const NODES_MAX: usize = 2_000_000;

/// What aliases may add to a file: a few bytes must not become a few gigabytes.
const ALIASED_EVENTS_MAX: usize = 200_000;
