//! Deserializer of YAML nodes. Errors have the span of their value.
//!
//! The serde name of a struct is its noun in messages ("a rule"). A field whose name starts with `$` holds a
//! struct with more fields of the same mapping. An enum with the variants `Text` and `Mapping` is chosen by
//! the type of the value.

mod reader;

use std::cell::RefCell;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny};

use super::NAME_BYTES_MAX;
use super::problem::ValueProblem;
use super::source::{Report, Span};
use super::yaml::{Value, YamlNode};
use reader::Reader;

/// Reads a mapping and reports all errors. Optional fields with errors are left out; after other errors the
/// result is `None`.
pub(crate) fn read<'n, T: Deserialize<'n>>(node: &'n YamlNode, report: &mut Report<'_>) -> Option<T> {
    value(node, "", report)
}

/// Like [`read`], but `None` after any error.
pub(crate) fn read_whole<'n, T: Deserialize<'n>>(node: &'n YamlNode, report: &mut Report<'_>) -> Option<T> {
    let errors_before = report.errors();
    read(node, report).filter(|_| report.errors() == errors_before)
}

/// Like [`read`], for the value of a field with this name in messages.
pub(crate) fn value<'n, T: Deserialize<'n>>(
    node: &'n YamlNode,
    field: &'n str,
    report: &mut Report<'_>,
) -> Option<T> {
    let mut skip = Vec::new();
    loop {
        let sink = RefCell::default();
        let read = T::deserialize(Reader { node, what: "", field, sink: &sink, skip: &skip, known: None });
        let error = read.as_ref().err().map(|error| &*error.0);
        if let Some(error) = error {
            let is_skipped = |name| skip.iter().any(|index| Mapping(node).name_at(*index) == Some(name));
            if error.field.is_some() || !error.missing.is_some_and(is_skipped) {
                report.settle::<()>(error.at.unwrap_or(node.at), Err(error.wrong.clone()));
            }
        }
        let field = error.and_then(|error| error.field);
        // The next round finds errors of other fields again.
        let errors_before = field.map_or(0, |(_, errors_before)| errors_before);
        for (at, wrong) in sink.take().into_iter().skip(errors_before) {
            report.settle::<()>(at, Err(wrong));
        }
        match field {
            Some((index, _)) => skip.push(index),
            None => return read.ok(),
        }
    }
}

pub(crate) fn has_field<'n, T: Deserialize<'n>>(mapping: Mapping<'n>) -> bool {
    let (sink, known) = (RefCell::default(), RefCell::default());
    // Errors do not matter here: the reader learns the names of all fields first.
    let _ = T::deserialize(Reader {
        node: mapping.0,
        what: "",
        field: "",
        sink: &sink,
        skip: &[],
        known: Some(&known),
    });
    known.take().into_iter().any(|name: &str| mapping.has(name))
}

/// The items of a list in a field, or none. An error is left to the reader of the mapping.
pub(crate) fn items<'n>(mapping: Mapping<'n>, field: &str) -> &'n [YamlNode] {
    match mapping.get(field).map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

/// Reads a text; numbers and booleans count as texts, as written.
pub(crate) fn text<'n>(node: &'n YamlNode, field: &str) -> Result<&'n str, ValueProblem> {
    node.as_scalar().ok_or_else(|| match node.value {
        Value::Null => ValueProblem::new(
            format!("`{field}` has no value"),
            "write one, in quotes if a word like \"null\" is meant, or leave the field out",
        ),
        _ => ValueProblem::new(format!("`{field}` is a text, not {}", node.kind()), "write one text"),
    })
}

/// A mapping, to look up what its struct does not hold: spans, the order of fields, names behind errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping<'n>(pub(crate) &'n YamlNode);

impl<'n> Mapping<'n> {
    pub(crate) fn pairs(self) -> &'n [(YamlNode, YamlNode)] {
        match &self.0.value {
            Value::Map(pairs) => pairs,
            _ => &[],
        }
    }

    fn find(self, name: &str) -> Option<&'n (YamlNode, YamlNode)> {
        self.pairs().iter().find(|(key, _)| key.as_scalar() == Some(name))
    }

    pub(crate) fn get(self, name: &str) -> Option<&'n YamlNode> {
        self.find(name).map(|(_, value)| value)
    }

    pub(crate) fn has(self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns the span of a field's value; without the field, that of the mapping.
    pub(crate) fn at(self, name: &str) -> Span {
        self.get(name).unwrap_or(self.0).at
    }

    pub(crate) fn key(self, name: &str) -> Option<Span> {
        self.find(name).map(|(key, _)| key.at)
    }

    fn name_at(self, index: usize) -> Option<&'n str> {
        self.pairs().get(index).and_then(|(key, _)| key.as_scalar())
    }
}

#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename = "$spanned")]
pub(crate) struct Spanned<T> {
    pub(crate) at: Span,
    pub(crate) value: T,
}

/// A value of any type: the name of its field, the name of its type, and the text of a scalar.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename = "$scalar")]
pub(crate) struct Scalar<'n>(pub(crate) &'n str, pub(crate) &'n str, pub(crate) &'n str);

/// A text: the name of its field, and the text.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename = "$text")]
pub(crate) struct FieldText<'n>(pub(crate) &'n str, pub(crate) &'n str);

/// A value of type `T` that another function reads, so that an error in one of a list hides none in others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred<T>(PhantomData<T>);

/// A mapping from any names to `T`, which another function reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredMap<T>(PhantomData<T>);

impl<'de, T> Deserialize<'de> for Deferred<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_ignored_any(IgnoredAny).map(|_| Deferred(PhantomData))
    }
}

impl<'de, T> Deserialize<'de> for DeferredMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(IgnoredAny).map(|_| DeferredMap(PhantomData))
    }
}

/// Suggests the nearest known name, or lists all of them.
pub(crate) fn suggest(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied(), TYPO) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// Returns the nearest known name if at most one of so many letters differs, without regard to case and to the
/// signs between words.
pub(crate) fn nearest<'k>(
    name: &str,
    known: impl IntoIterator<Item = &'k str>,
    letters: usize,
) -> Option<&'k str> {
    let plain = |text: &str| text.trim().to_lowercase().replace(['-', '.'], "_");
    let own = plain(name);
    let distances = known.into_iter().map(|known| (strsim::osa_distance(&own, &plain(known)), known));
    let (distance, near) = distances.min_by_key(|(distance, _)| *distance)?;
    let is_near = name.len() <= NAME_BYTES_MAX && distance * letters <= near.chars().count().max(3);
    is_near.then_some(near)
}

/// Up to a third of the letters wrong counts as a typo.
pub(crate) const TYPO: usize = 3;
