//! Values of fields in rules files: how they are read, and their JSON Schema.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use jiff::tz::TimeZone;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::de::{Deferred, DeferredMap, FieldText, Scalar, Spanned, TYPO, nearest};
use super::file::ConditionFields;
use super::problem::{ValueProblem, shown};
use super::rate_text::{WrittenRate, parse_duration, unit_names};
use super::{amount, percent, rate_text};

/// A text; numbers and booleans count as texts, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Text<'n>(#[serde(borrow)] pub(crate) &'n str);

/// 1 to 64 bytes without control characters, `:` or `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<'n>(pub(crate) &'n str);

/// The name of an attribute of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeName<'n>(pub(super) &'n str);

/// One line of text for refused callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelpText<'n>(pub(super) &'n str);

/// A value of `match`, which `conditions` reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchValues;

/// One text, or a list of alternatives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts;

/// Any value.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnyValue;

/// A time zone of the IANA database.
#[derive(Clone, Debug)]
pub(super) struct Zone(pub(super) TimeZone);

/// A duration within bounds in milliseconds, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time<const LEAST: u64 = 0, const MOST: u64 = { u64::MAX }>(pub(crate) Duration);

/// A percentage within bounds in thousandths, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PercentText<const LEAST: u16 = 1, const MOST: u16 = { percent::WHOLE_SHARE }>(
    pub(crate) u16,
);

/// A number of concurrent leases, or `unlimited`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Max(pub(super) WrittenRate);

/// A fraction, as numerator and denominator: `1/1800`, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fraction(pub(crate) (u32, u32));

/// A number of requests in each window of a descriptor; 0 refuses all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestCount(pub(super) u32);

/// Checks a name of a domain, rule or attribute: short enough for the wire, and unambiguous in `domain/rule`.
pub(crate) fn check_name(name: &str, what: &str) -> Result<(), ValueProblem> {
    let bad = name.chars().find(|character| character.is_control() || matches!(character, ':' | '/'));
    if name.is_empty() {
        return Err(ValueProblem::new(format!("the name of {what} is empty"), "write 1 to 64 bytes"));
    }
    if name.len() > NAME_BYTES_MAX {
        let message = format!("the name of {what} has {} bytes: {}", name.len(), shown(name));
        return Err(ValueProblem::new(message, format!("write at most {NAME_BYTES_MAX} bytes")));
    }
    match bad {
        None => Ok(()),
        Some(character) => {
            let message = format!("the name of {what} may not hold {character:?}: {}", shown(name));
            Err(ValueProblem::new(message, "leave out `:`, `/` and control characters; `-` and `.` are fine"))
        }
    }
}

/// The maximum on the wire.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// The maximum on the wire.
pub(super) const VALUE_BYTES_MAX: usize = 1_024;

/// Implements `Deserialize` for types that are read from a [`FieldText`] or a [`Scalar`].
macro_rules! read_from {
    ($([$($of:tt)*] $type:ty, $source:ident => $read:expr;)*) => {$(
        impl<$($of)*> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let read: fn($source<'de>) -> Result<Self, $crate::rules::ValueProblem> = $read;
                read($source::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

pub(crate) use read_from;

read_from! {
    ['de: 'n, 'n] Name<'n>, FieldText => |FieldText(field, text)| {
        let what = match field {
            "domain" => "a domain",
            "unit" => "a unit",
            "pool" => "a pool",
            "priorities" => "a priority",
            "signals" => "a signal",
            "domains" => "a domain of the settings",
            "pools" => "a pool of the settings",
            _ => "a rule",
        };
        check_name(text, what).map(|()| Name(text))
    };
    ['de: 'n, 'n] AttributeName<'n>, Scalar => |Scalar(field, kind, text)| {
        if !is_scalar(kind) {
            let field = if field == "attribute" { "key" } else { field };
            let message = format!("an attribute of `{field}` is a name, not {kind}");
            return Err(ValueProblem::new(message, "write the name of an attribute, such as `user`"));
        }
        check_name(text, "an attribute").map(|()| AttributeName(text))
    };
    ['de: 'n, 'n] HelpText<'n>, FieldText => |FieldText(field, text)| {
        if text.len() > HELP_BYTES_MAX {
            let help = format!("write at most {HELP_BYTES_MAX}: it is sent with every refusal");
            return Err(ValueProblem::new(format!("`{field}` has {} bytes", text.len()), help));
        }
        if text.is_empty() || text.contains(char::is_control) {
            let message = format!("`{field}` is one line of text, not {}", shown(text));
            return Err(ValueProblem::new(message, "write a link or a sentence, or leave the field out"));
        }
        Ok(HelpText(text))
    };
    ['de] Zone, FieldText => |FieldText(_, name)| zone(name).map(Zone);
    ['de] WrittenRate, FieldText => |FieldText(_, text)| rate_text::parse(text);
    ['de, const LEAST: u64, const MOST: u64] Time<LEAST, MOST>, FieldText => |FieldText(field, text)| {
        let time = parse_duration(text, field)?;
        let what = match time.as_nanos() / 1_000_000 {
            millis if millis < u128::from(LEAST) => "short",
            millis if millis > u128::from(MOST) => "long",
            _ => return Ok(Time(time)),
        };
        let help = format!("write {} to {}", millis(LEAST), millis(MOST));
        Err(ValueProblem::new(format!("`{field}: {text}` is too {what}"), help))
    };
    ['de, const LEAST: u16, const MOST: u16] PercentText<LEAST, MOST>, Scalar => |scalar| {
        percent::read(scalar, LEAST, MOST).map(PercentText)
    };
    ['de] Max, Scalar => |scalar| match scalar.2 {
        UNLIMITED => Ok(Max(WrittenRate::Unlimited)),
        _ => Max::some(amount::read_from(scalar, 0)?),
    };
    ['de] Fraction, FieldText => |FieldText(field, text)| fraction(field, text).map(Fraction);
    ['de] RequestCount, Scalar => request_count;
}

impl Max {
    /// Reads a cell of a table.
    pub(super) fn of_cell(text: &str) -> Result<Max, ValueProblem> {
        let in_max =
            |wrong: ValueProblem| ValueProblem { message: format!("`max`: {}", wrong.message), ..wrong };
        match text {
            UNLIMITED => Ok(Max(WrittenRate::Unlimited)),
            _ => Max::some(amount::parse(text).map_err(in_max)?),
        }
    }

    fn some(max: u32) -> Result<Max, ValueProblem> {
        let nothing = || {
            let help = "write at least 1; to refuse such requests, use `deny` with the same `match`";
            ValueProblem::new("`max` is 0: nothing would ever pass", help)
        };
        NonZeroU32::new(max).map(|max| Max(WrittenRate::AtOnce(max))).ok_or_else(nothing)
    }
}

/// Whether a value with this name of its type has a text.
pub(super) fn is_scalar(kind: &str) -> bool {
    matches!(kind, "a text" | "a number" | "a boolean")
}

fn zone(name: &str) -> Result<TimeZone, ValueProblem> {
    // Fixed offsets and other descriptions outside the database have no common calendar.
    TimeZone::get(name).map_err(|_| {
        let names: Vec<String> = jiff::tz::db().available().map(|known| known.to_string()).collect();
        let known = names.iter().map(String::as_str);
        // Suggests `Europe/Berlin` for `Berlin`.
        let ends =
            |known: &&str| known.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name));
        let help = match known.clone().find(ends).or_else(|| nearest(name, known, TYPO)) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "write a name of the IANA time zone database, such as Europe/Berlin".to_owned(),
        };
        ValueProblem::new(format!("unknown time zone {}", shown(name)), help)
    })
}

fn millis(count: u64) -> String {
    match count {
        count if count >= DAY => format!("{}day", count / DAY),
        count if count >= SECOND => format!("{}s", count / SECOND),
        count => format!("{count}ms"),
    }
}

fn fraction(field: &str, text: &str) -> Result<(u32, u32), ValueProblem> {
    let example = "write it like 1/1800";
    if text == "0" {
        return Ok((0, 1));
    }
    match text.split_once('/').map(|(part, whole)| (amount::parse(part), amount::parse(whole))) {
        Some((Ok(_), Ok(0))) => Err(ValueProblem::new(format!("`{field}: {text}` divides by 0"), example)),
        Some((Ok(0), Ok(_))) => Ok((0, 1)),
        Some((Ok(part), Ok(whole))) if part <= whole => Ok((part, whole)),
        Some((Ok(_), Ok(_))) => {
            Err(ValueProblem::new(format!("`{field}: {text}` is more than all of it in a second"), example))
        }
        _ => Err(ValueProblem::new(
            format!("`{field}` is a fraction, not {}", shown(text)),
            "write how much of the whole goes in a second, such as 1/1800, or 0",
        )),
    }
}

fn request_count(Scalar(field, kind, text): Scalar<'_>) -> Result<RequestCount, ValueProblem> {
    if kind != "a number" {
        let (found, help) = match is_scalar(kind) {
            true => (format!("the text {}", shown(text)), "write a whole number in digits, without quotes"),
            false => (kind.to_owned(), "write a whole number"),
        };
        return Err(ValueProblem::new(format!("`{field}` is a number, not {found}"), help));
    }
    let octal = text.strip_prefix("0o").or_else(|| text.strip_prefix('0')).filter(|rest| !rest.is_empty());
    if let Some(octal) = octal.and_then(|rest| u32::from_str_radix(rest, 8).ok()) {
        let message = format!("{} is octal, and {octal} to that service", shown(text));
        let help = format!("write {octal}, or the decimal number that is meant");
        return Err(ValueProblem::new(message, help));
    }
    let count = amount::parse(text).map_err(|wrong| match text.starts_with('-') {
        true => ValueProblem::new(wrong.message, "write 0, which refuses every request, or more"),
        false => wrong,
    });
    count.map(RequestCount)
}

/// It is part of every refusal, of which many must fit into a frame.
const HELP_BYTES_MAX: usize = 512;

const UNLIMITED: &str = "unlimited";

/// In milliseconds, for the bounds of a [`Time`].
pub(super) const SECOND: u64 = 1_000;
/// In milliseconds, for the bounds of a [`Time`].
pub(super) const DAY: u64 = 86_400 * SECOND;

/// Implements `JsonSchema` for types without a definition of their own.
macro_rules! schema {
    ($([$($of:tt)*] $type:ty => |$generator:ident| $schema:expr;)*) => {$(
        impl<$($of)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

// The title names a type in the docs.
schema! {
    [] Text<'_> => |_generator| json_schema!({"title": "text", "type": SCALAR});
    [] HelpText<'_> => |_generator| json_schema!({"title": "text", "type": SCALAR});
    [] Name<'_> => |_generator| json_schema!({"title": "name", "type": SCALAR, "pattern": NAME});
    [] AttributeName<'_> => |_generator| json_schema!({"title": "name", "type": SCALAR, "pattern": NAME});
    [] Zone => |_generator| json_schema!({"title": "text", "type": "string"});
    [] WrittenRate => |_generator| {
        let pattern = format!("^(unlimited|[1-9][0-9]*/([1-9][0-9]*)?({}))$", units());
        json_schema!({"title": "rate, or `unlimited`", "type": "string", "pattern": pattern})
    };
    [const LEAST: u64, const MOST: u64] Time<LEAST, MOST> => |_generator| {
        let pattern = format!("^[1-9][0-9]*({})$", units());
        json_schema!({"title": "time, such as `15min`", "type": "string", "pattern": pattern})
    };
    [const LEAST: u16, const MOST: u16] PercentText<LEAST, MOST> => |_generator| {
        json_schema!({"title": "percentage", "type": "string", "pattern": "^[0-9]{1,4}([.][0-9])?%$"})
    };
    [] Max => |_generator| {
        json_schema!({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["unlimited"]}]})
    };
    [] Fraction => |_generator| json_schema!({"title": "fraction", "type": SCALAR});
    [] RequestCount => |_generator| json_schema!({"type": "integer", "minimum": 0});
    [] Scalar<'_> => |_generator| {
        json_schema!({"title": "number or percentage", "type": ["integer", "string"]})
    };
    [] Texts => |generator| {
        let text = generator.subschema_for::<Text<'_>>();
        json_schema!({"anyOf": [text, {"type": "array", "items": text}]})
    };
    [] MatchValues => |generator| {
        let text = generator.subschema_for::<Text<'_>>();
        let condition = generator.subschema_for::<ConditionFields>();
        json_schema!({"anyOf": [text, condition, {"type": "array", "items": {"anyOf": [text, condition]}}]})
    };
    [] AnyValue => |_generator| json_schema!({});
    [T: JsonSchema] DeferredMap<T> => |generator| {
        json_schema!({"type": "object", "additionalProperties": generator.subschema_for::<T>()})
    };
    [T: JsonSchema] Deferred<T> => |generator| generator.subschema_for::<T>();
    [T: JsonSchema] Spanned<T> => |generator| generator.subschema_for::<T>();
}

fn units() -> String {
    unit_names().collect::<Vec<_>>().join("|")
}

/// Numbers and booleans are read as texts, as written.
const SCALAR: [&str; 3] = ["string", "number", "boolean"];

const NAME: &str = "^[^:/\\u0000-\\u001f\\u007f]{1,64}$";
