//! What is known of every field: its name, its type, its default, where it may stand. The reader, the table in the
//! docs and the schema for editors are made from this and from nothing else.

/// A field that a mapping may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Whether it does something yet. The name of one that does not is reserved.
    pub built: bool,
    /// What its value is.
    pub kind: Kind,
    /// What holds without it; nothing is said of one that must be there.
    pub default: &'static str,
    /// Whether it must be there.
    pub required: bool,
    /// The algorithms that have it; empty: all.
    pub only: &'static [&'static str],
    /// What it says, in a line.
    pub about: &'static str,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything: its reader says what is wrong.
    Any,
    /// 1 to 64 bytes without control characters, `:` or `/`.
    Name,
    /// A text, or a number or boolean taken as it is written.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number in these bounds.
    Whole(u32, u32),
    /// `N/UNIT` or `N/NUNIT`, or `unlimited`.
    Rate,
    /// A number and a unit of time.
    Time,
    /// A number and `%`.
    Percent,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A list of these.
    List(&'static Kind),
    /// Attributes and for each one of these.
    Attributes(&'static Kind),
    /// Names and for each one of these.
    Named(&'static Kind),
    /// A reading and the utilization that it stands for.
    Point,
    /// A mapping with the fields of this section.
    Section(&'static str),
    /// Any of these.
    Either(&'static [Kind]),
}

/// The fields of one kind of mapping.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// What [`Kind::Section`] calls it.
    pub name: &'static str,
    /// Where in a file it stands, for the table.
    pub place: &'static str,
    /// Its fields.
    pub fields: &'static [Field],
}

impl Field {
    /// A field that works.
    #[must_use]
    pub const fn built(name: &'static str) -> Field {
        Field { name, built: true, kind: Kind::Any, default: "", required: false, only: &[], about: "" }
    }

    /// A field whose name is reserved.
    #[must_use]
    pub const fn reserved(name: &'static str) -> Field {
        Field { built: false, ..Field::built(name) }
    }

    /// What its value is.
    #[must_use]
    pub const fn of(self, kind: Kind) -> Field {
        Field { kind, ..self }
    }

    /// What holds without it.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Field {
        Field { default, required: false, ..self }
    }

    /// It must be there.
    #[must_use]
    pub const fn required(self) -> Field {
        Field { required: true, default: "", ..self }
    }

    /// Only these algorithms have it.
    #[must_use]
    pub const fn only(self, only: &'static [&'static str]) -> Field {
        Field { only, ..self }
    }

    /// What it says, in a line.
    #[must_use]
    pub const fn about(self, about: &'static str) -> Field {
        Field { about, ..self }
    }
}
