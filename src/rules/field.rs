//! Metadata of every field, the only source of the reader, of the table in the docs and of the JSON schema.

/// A field of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    /// Whether it is implemented; otherwise the name is reserved.
    pub built: bool,
    /// The type of its value.
    pub kind: FieldKind,
    /// The default; empty for a required field.
    pub default: &'static str,
    /// Whether it is required.
    pub required: bool,
    /// The algorithms that have it; empty for all.
    pub only: &'static [&'static str],
    /// A description of one line.
    pub about: &'static str,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Any value; its reader checks it.
    Any,
    /// 1 to 64 bytes without control characters, `:` or `/`.
    Name,
    /// A text; numbers and booleans count as texts, as written.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number within these bounds, inclusive.
    Whole(u32, u32),
    /// `N/UNIT` or `N/NUNIT`, or `unlimited`.
    Rate,
    /// A number and a unit of time.
    Time,
    /// A number and `%`.
    Percent,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A list of values of one type.
    List(&'static FieldKind),
    /// A mapping from attributes to values of one type.
    Attributes(&'static FieldKind),
    /// A mapping from names to values of one type.
    Named(&'static FieldKind),
    /// A sample and its utilization.
    Point,
    /// A mapping with the fields of the named section.
    Section(&'static str),
    /// One of these types.
    Either(&'static [FieldKind]),
}

/// The fields of one kind of mapping.
#[derive(Clone, Copy, Debug)]
pub struct FieldSection {
    /// The name that [`FieldKind::Section`] refers to.
    pub name: &'static str,
    /// Its location in a file, for the docs.
    pub place: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
}

impl Field {
    /// Makes an implemented field.
    #[must_use]
    pub const fn built(name: &'static str) -> Field {
        Field { name, built: true, kind: FieldKind::Any, default: "", required: false, only: &[], about: "" }
    }

    /// Makes a field whose name is reserved.
    #[must_use]
    pub const fn reserved(name: &'static str) -> Field {
        Field { built: false, ..Field::built(name) }
    }

    /// Sets the type.
    #[must_use]
    pub const fn of(self, kind: FieldKind) -> Field {
        Field { kind, ..self }
    }

    /// Sets the default.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Field {
        Field { default, required: false, ..self }
    }

    /// Makes the field required.
    #[must_use]
    pub const fn required(self) -> Field {
        Field { required: true, default: "", ..self }
    }

    /// Restricts the field to these algorithms.
    #[must_use]
    pub const fn only(self, only: &'static [&'static str]) -> Field {
        Field { only, ..self }
    }

    /// Sets the description.
    #[must_use]
    pub const fn about(self, about: &'static str) -> Field {
        Field { about, ..self }
    }
}
