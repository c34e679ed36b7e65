//! The `Deserializer` of a YAML node.

use std::cell::RefCell;
use std::fmt::Display;

use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::{Scalar, suggest, text};
use crate::rules::amount;
use crate::rules::hints::{exact_hint, hint, home};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::source::Span;
use crate::rules::yaml::{ScalarKind, Value, YamlNode};

/// An error. The first reader with a span adds it.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.wrong)]
pub(super) struct ReadError(pub(super) Box<ErrorDetails>);

#[derive(Debug)]
pub(super) struct ErrorDetails {
    pub(super) at: Option<Span>,
    pub(super) wrong: ValueProblem,
    pub(super) missing: Option<&'static str>,
    /// The field in the outermost mapping so far: its index, and the number of errors in the sink before it.
    pub(super) field: Option<(usize, usize)>,
}

impl serde::de::Error for ReadError {
    /// Takes the form of [`ValueProblem`]: the message, and the help on the next line.
    fn custom<M: Display>(message: M) -> ReadError {
        let text = message.to_string();
        let (message, help) = text.split_once('\n').unwrap_or((&text, ""));
        ReadError::from(ValueProblem::new(message, help))
    }

    fn missing_field(field: &'static str) -> ReadError {
        let mut error = ReadError::custom("");
        error.0.missing = Some(field);
        error
    }
}

impl From<ValueProblem> for ReadError {
    fn from(wrong: ValueProblem) -> ReadError {
        ReadError(Box::new(ErrorDetails { at: None, wrong, missing: None, field: None }))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Reader<'r, 'n> {
    pub(super) node: &'n YamlNode,
    pub(super) what: &'static str,
    pub(super) field: &'n str,
    /// Errors of names of fields.
    pub(super) sink: &'r RefCell<Vec<(Span, ValueProblem)>>,
    /// The indexes of fields with known errors.
    pub(super) skip: &'r [usize],
    /// For a part of a struct: the fields of the whole.
    pub(super) known: Option<&'r RefCell<Vec<&'static str>>>,
}

impl<'n> Reader<'_, 'n> {
    fn wrong<T>(self, message: String, help: impl Into<String>) -> Result<T, ReadError> {
        self.at(Err(ValueProblem::new(message, help).into()))
    }

    /// Adds the span to an error without one.
    fn at<T>(self, read: Result<T, ReadError>) -> Result<T, ReadError> {
        read.map_err(|mut error| {
            error.0.at.get_or_insert(self.node.at);
            error
        })
    }

    fn text(self) -> Result<&'n str, ReadError> {
        self.at(text(self.node, self.field).map_err(ReadError::from))
    }

    /// Makes the error of a value that should have the shape `what`.
    fn not<T>(self, what: &str, or: &str) -> Result<T, ReadError> {
        let found = self.node.kind();
        let help = match self.node.as_scalar() {
            Some(text) if self.field == "key" => format!("write `key: [{text}]`"),
            _ => hint(self.what, self.field).unwrap_or(or).to_owned(),
        };
        match self.node.value {
            Value::Null if what.ends_with("is a list") => {
                self.wrong(format!("`{}` has no value", self.field), help)
            }
            _ => self.wrong(format!("{what}, not {found}"), help),
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'_, 'de> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.at(visitor.visit_borrowed_str(self.text()?))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        if let Value::Scalar(ScalarKind::Boolean, text) = &self.node.value {
            return visitor.visit_bool(text.eq_ignore_ascii_case("true"));
        }
        let found = self.node.as_scalar().map_or(self.node.kind().to_owned(), shown);
        let meant = match self.node.as_scalar().map(str::to_lowercase).as_deref() {
            Some("y" | "yes" | "on" | "true" | "1") => "`true`",
            Some("n" | "no" | "off" | "false" | "0") => "`false`",
            _ => "`true` or `false`",
        };
        let message = format!("`{}` is true or false, not {found}", self.field);
        self.wrong(message, format!("write {meant}, without quotes"))
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let scalar = Scalar(self.field, self.node.kind(), self.node.as_scalar().unwrap_or_default());
        let number = self.at(amount::read_from(scalar, 0).map_err(ReadError::from))?;
        let read: Result<_, ReadError> = visitor.visit_u32(number);
        read.or_else(|_| self.wrong(format!("`{}` is 0", self.field), "write at least 1"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::List(items) => visitor.visit_seq(Items { reader: self, items: items.iter() }),
            _ => self.not(&format!("`{}` is a list", self.field), "write a list: `[…]`"),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let text = self.node.as_scalar().unwrap_or_default();
        let texts: &[&str] = match name {
            "$scalar" => &[self.field, self.node.kind(), text],
            "$text" => &[self.field, self.text()?],
            _ => {
                return match &self.node.value {
                    Value::List(items) if items.len() != len => {
                        let message =
                            format!("{name} of `{}` has {} values, not {len}", self.field, items.len());
                        self.wrong(message, hint(self.what, self.field).unwrap_or_default())
                    }
                    Value::List(_) => self.deserialize_seq(visitor),
                    _ => self.not(&format!("{name} of `{}` is a list", self.field), ""),
                };
            }
        };
        let texts = texts.iter().map(|text| BorrowedStrDeserializer::<ReadError>::new(text));
        visitor.visit_seq(SeqDeserializer::new(texts))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.node.value {
            Value::Map(_) => visitor.visit_unit(),
            _ => self.not(&format!("`{}` is a mapping", self.field), "write names and values"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        what: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if what == "$spanned" {
            return visitor.visit_seq(SpannedParts { reader: self, is_value: false });
        }
        let Value::Map(pairs) = &self.node.value else {
            let first = fields.first().filter(|first| !first.starts_with('$')).unwrap_or(&"name");
            let help = format!("write fields and values, such as `{first}: …`");
            return self.wrong(format!("{what} is a mapping, not {}", self.node.kind()), help);
        };
        let own = RefCell::new(fields.to_vec());
        if let Some(known) = self.known {
            let mut known = known.borrow_mut();
            let part = known.iter().position(|name| *name == what).map_or(0..0, |at| at..at + 1);
            known.splice(part, fields.iter().copied());
        }
        let known = self.known.unwrap_or(&own);
        let access =
            Fields { reader: self, what, fields, known, pairs, next: 0, part: fields.len(), current: None };
        let read = visitor.visit_map(access);
        // The struct completes errors of its parts.
        if self.known.is_some() {
            return read;
        }
        read.map_err(|mut error| {
            if let (Some(field), None) = (error.0.missing, error.0.at) {
                let help = hint(what, field).map_or_else(|| format!("write `{field}: …`"), str::to_owned);
                error.0.wrong = ValueProblem::new(format!("{what} needs `{field}`"), help);
            }
            error.0.at.get_or_insert(self.node.at);
            error
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        if variants.contains(&"Mapping") {
            // The variant is that of the type of the value.
            let variant = if matches!(self.node.value, Value::Map(_)) { "Mapping" } else { "Text" };
            let only = MapDeserializer::new(std::iter::once((variant, self)));
            return visitor.visit_enum(MapAccessDeserializer::new(only));
        }
        let text = self.text()?;
        if !variants.contains(&text) {
            let help = hint(self.what, self.field).map_or_else(|| suggest(text, variants), str::to_owned);
            return self.wrong(format!("unknown {} {}", self.field, shown(text)), help);
        }
        visitor.visit_enum(BorrowedStrDeserializer::new(text))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple identifier
    }
}

impl<'de> IntoDeserializer<'de, ReadError> for Reader<'_, 'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

struct Items<'r, 'n> {
    reader: Reader<'r, 'n>,
    items: std::slice::Iter<'n, YamlNode>,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let reader = Reader { node, skip: &[], known: None, ..self.reader };
        reader.at(seed.deserialize(reader)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct SpannedParts<'r, 'n> {
    reader: Reader<'r, 'n>,
    is_value: bool,
}

impl<'de> SeqAccess<'de> for SpannedParts<'_, 'de> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        if std::mem::replace(&mut self.is_value, true) {
            return self.reader.at(seed.deserialize(self.reader)).map(Some);
        }
        let Span { line, column, width, byte } = self.reader.node.at;
        seed.deserialize(SeqDeserializer::new([line, column, width, byte].into_iter())).map(Some)
    }
}

/// The fields of a struct: its own in file order, then its parts from the last to the first.
struct Fields<'r, 'n> {
    reader: Reader<'r, 'n>,
    what: &'static str,
    fields: &'static [&'static str],
    /// The fields of the struct, with the names of parts that are not read yet.
    known: &'r RefCell<Vec<&'static str>>,
    pairs: &'n [(YamlNode, YamlNode)],
    next: usize,
    part: usize,
    /// The index of the current field; `None` for a part.
    current: Option<usize>,
}

impl<'n> Fields<'_, 'n> {
    /// Returns the earlier field of the same name.
    fn first(&self, index: usize, name: &str) -> Option<&'n YamlNode> {
        let mut before = self.pairs.iter().take(index).map(|(key, _)| key);
        before.find(|key| key.as_scalar() == Some(name))
    }

    /// Returns the name of a field of this struct with a value.
    fn own(&self, index: usize) -> Option<&'n str> {
        let (key, value) = self.pairs.get(index)?;
        let name = key.as_scalar().filter(|name| self.fields.contains(name))?;
        // As envoyproxy/ratelimit reads descriptors.
        let is_descriptor = matches!(self.what, "a descriptor" | "`rate_limit`" | "an entry of `replaces`");
        let is_absent = value.value == Value::Null && (is_descriptor || name == "descriptors");
        (!is_absent && !self.reader.skip.contains(&index) && self.first(index, name).is_none())
            .then_some(name)
    }

    /// Reports unknown fields and duplicates, once the fields of all parts are known.
    fn check_names(&self) {
        let known = self.known.borrow();
        if self.reader.known.is_some() || known.iter().any(|name| name.starts_with('$')) {
            return;
        }
        for (index, (key, _)) in self.pairs.iter().enumerate() {
            let (message, help) = match key.as_scalar() {
                None => (
                    format!("the name of a field is a text, not {}", key.kind()),
                    "if a value was meant, write it in quotes".to_owned(),
                ),
                Some(name) if known.contains(&name) => {
                    let Some(first) = self.first(index, name) else { continue };
                    let help = format!("keep one of the two; the first is on line {}", first.at.line);
                    (format!("`{name}` is written twice in {}", self.what), help)
                }
                Some(name) => match home(self.what, name) {
                    Some(home) => (
                        format!("`{name}` does nothing in {}", self.what),
                        format!("it stands {home}: move it there, or leave it out"),
                    ),
                    None => (
                        format!("unknown field {} in {}", shown(name), self.what),
                        exact_hint(self.what, name).map_or_else(|| suggest(name, &known), str::to_owned),
                    ),
                },
            };
            let mut sink = self.reader.sink.borrow_mut();
            sink.push((key.at, ValueProblem { message, help }));
            if sink.len() >= ERRORS_MAX {
                return;
            }
        }
    }
}

impl<'de> MapAccess<'de> for Fields<'_, 'de> {
    type Error = ReadError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ReadError> {
        while self.next < self.pairs.len() {
            let index = self.next;
            self.next += 1;
            if let Some(name) = self.own(index) {
                self.current = Some(index);
                return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
            }
        }
        self.current = None;
        while let Some(part) = self.part.checked_sub(1) {
            self.part = part;
            if let Some(field) = self.fields.get(part).filter(|field| field.starts_with('$')) {
                return seed.deserialize((*field).into_deserializer()).map(Some);
            }
        }
        self.check_names();
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let value = self.current.and_then(|index| Some((index, self.pairs.get(index)?)));
        let Some((index, (key, node))) = value else {
            let read = seed.deserialize(Reader { known: Some(self.known), ..self.reader });
            // An error in a value is followed by another round.
            if read.as_ref().is_err_and(|error: &ReadError| error.0.field.is_none()) {
                self.check_names();
            }
            return read;
        };
        let (what, field) = (self.what, key.as_scalar().unwrap_or_default());
        let errors_before = self.reader.sink.borrow().len();
        let reader = Reader { node, what, field, skip: &[], known: None, ..self.reader };
        reader.at(seed.deserialize(reader)).map_err(|mut error| {
            error.0.field = Some((index, errors_before));
            error
        })
    }
}

/// More wrong names in one mapping are not worth listing, and each is compared with all known ones.
const ERRORS_MAX: usize = 100;
