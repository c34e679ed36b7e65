//! Deserializer of YAML nodes. Errors have the span of their value.
//!
//! The serde name of a struct is its noun in messages ("a rule"). A field whose name starts with `$` holds a
//! struct with more fields of the same mapping. An enum with the variants `Text` and `Mapping` is chosen by
//! the type of the value.

mod reader;

use std::cell::RefCell;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny};

use super::problem::ValueProblem;
use super::source::{Report, Span};
use super::yaml::{Value, YamlNode};
use super::{NAME_BYTES_MAX, Position};
use reader::Reader;

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

/// A node of a file, and the report of the file's problems. A struct has its fields; their spans and order, and the names
/// behind errors, are looked up here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileNode<'n> {
    pub(crate) node: &'n YamlNode,
    pub(crate) report: &'n Report<'n>,
}

impl std::ops::Deref for FileNode<'_> {
    type Target = YamlNode;

    fn deref(&self) -> &YamlNode {
        self.node
    }
}

impl<'n> FileNode<'n> {
    pub(crate) fn new(node: &'n YamlNode, report: &'n Report<'n>) -> FileNode<'n> {
        FileNode { node, report }
    }

    /// Reads a mapping and reports all errors. Optional fields with errors are left out; after other errors the
    /// result is `None`.
    pub(crate) fn read<T: Deserialize<'n>>(self) -> Option<T> {
        self.value("")
    }

    /// Like [`FileNode::read`], but `None` after any error.
    pub(crate) fn read_whole<T: Deserialize<'n>>(self) -> Option<T> {
        let errors_before = self.report.errors();
        self.read().filter(|_| self.report.errors() == errors_before)
    }

    /// Like [`FileNode::read`], for the value of a field with this name in messages.
    pub(crate) fn value<T: Deserialize<'n>>(self, field: &'n str) -> Option<T> {
        let (node, mut skip) = (self.node, Vec::new());
        loop {
            let sink = RefCell::default();
            let read =
                T::deserialize(Reader { node, what: "", field, sink: &sink, skip: &skip, known: None });
            let error = read.as_ref().err().map(|error| &*error.0);
            if let Some(error) = error {
                let is_skipped = |name| skip.iter().any(|index| self.name_at(*index) == Some(name));
                if error.field.is_some() || !error.missing.is_some_and(is_skipped) {
                    self.report.settle::<()>(error.at.unwrap_or(node.at), Err(error.wrong.clone()));
                }
            }
            let field = error.and_then(|error| error.field);
            // The next round finds errors of other fields again.
            let errors_before = field.map_or(0, |(_, errors_before)| errors_before);
            for (at, wrong) in sink.take().into_iter().skip(errors_before) {
                self.report.settle::<()>(at, Err(wrong));
            }
            match field {
                Some((index, _)) => skip.push(index),
                None => return read.ok(),
            }
        }
    }

    /// The items of a list in a field, or none. An error is left to the reader of the mapping.
    pub(crate) fn items(self, field: &str) -> impl ExactSizeIterator<Item = FileNode<'n>> + Clone {
        let items = match self.get(field).map(|list| &list.node.value) {
            Some(Value::List(items)) => items.as_slice(),
            _ => &[],
        };
        items.iter().map(move |node| FileNode { node, ..self })
    }

    /// The items of a list, or the node itself.
    pub(crate) fn each(self) -> impl ExactSizeIterator<Item = FileNode<'n>> + Clone {
        let items = match &self.node.value {
            Value::List(items) => items.as_slice(),
            _ => std::slice::from_ref(self.node),
        };
        items.iter().map(move |node| FileNode { node, ..self })
    }

    fn raw_pairs(self) -> &'n [(YamlNode, YamlNode)] {
        match &self.node.value {
            Value::Map(pairs) => pairs,
            _ => &[],
        }
    }

    pub(crate) fn pairs(self) -> impl ExactSizeIterator<Item = (FileNode<'n>, FileNode<'n>)> {
        let of = move |node| FileNode { node, ..self };
        self.raw_pairs().iter().map(move |(key, value)| (of(key), of(value)))
    }

    fn find(self, name: &str) -> Option<&'n (YamlNode, YamlNode)> {
        self.raw_pairs().iter().find(|(key, _)| key.as_scalar() == Some(name))
    }

    pub(crate) fn get(self, name: &str) -> Option<FileNode<'n>> {
        self.find(name).map(|(_, node)| FileNode { node, ..self })
    }

    pub(crate) fn has(self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns a field's value; without the field, the mapping.
    pub(crate) fn field(self, name: &str) -> FileNode<'n> {
        self.get(name).unwrap_or(self)
    }

    /// Returns the span of [`FileNode::field`].
    pub(crate) fn at(self, name: &str) -> Span {
        self.field(name).node.at
    }

    /// Returns the name of a field, as a node.
    pub(crate) fn key(self, name: &str) -> Option<FileNode<'n>> {
        self.find(name).map(|(node, _)| FileNode { node, ..self })
    }

    fn name_at(self, index: usize) -> Option<&'n str> {
        self.raw_pairs().get(index).and_then(|(key, _)| key.as_scalar())
    }

    pub(crate) fn position(self) -> Position {
        self.report.source().position(self.node.at)
    }

    /// Reports an error of this node.
    pub(crate) fn error(self, message: impl Into<String>, help: impl Into<String>) {
        self.report.error(self.node.at, message, help);
    }

    pub(crate) fn warn(self, message: impl Into<String>, help: impl Into<String>) {
        self.report.warning(self.node.at, message, help);
    }

    /// Returns a valid value, or reports its error here.
    pub(crate) fn settle<T>(self, value: Result<T, ValueProblem>) -> Option<T> {
        self.report.settle(self.node.at, value)
    }

    /// Reports an error of [`FileNode::field`].
    pub(crate) fn error_at(self, field: &str, message: impl Into<String>, help: impl Into<String>) {
        self.field(field).error(message, help);
    }

    pub(crate) fn warn_at(self, field: &str, message: impl Into<String>, help: impl Into<String>) {
        self.field(field).warn(message, help);
    }

    /// Whether the mapping has a field of this struct.
    pub(crate) fn has_field_of<T: Deserialize<'n>>(self) -> bool {
        let (sink, known) = (RefCell::default(), RefCell::default());
        let (node, known_fields) = (self.node, Some(&known));
        // Errors do not matter here: the reader learns the names of all fields first.
        let _ =
            T::deserialize(Reader { node, what: "", field: "", sink: &sink, skip: &[], known: known_fields });
        known.take().into_iter().any(|name: &str| self.has(name))
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
