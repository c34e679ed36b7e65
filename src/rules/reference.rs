//! Reference of all fields from the reader's tables: the table in `docs/rules.md` and a JSON Schema.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::field::{Field, FieldKind, FieldSection};
use super::period::unit_names;
use super::written::SECTIONS;

/// Returns the Markdown table of all fields: one row per field, with its sections.
#[must_use]
pub fn field_table() -> String {
    let mut rows: Vec<(&Field, Vec<String>)> = Vec::new();
    for section in SECTIONS {
        for field in section.fields {
            let same = |known: &Field| known.name == field.name && known.about == field.about;
            match rows.iter_mut().find(|(known, _)| same(known)) {
                Some((known, places)) if default(known) == default(field) => {
                    places.push(section.place.to_owned());
                }
                Some((_, places)) => places.push(format!("{} ({})", section.place, default(field))),
                None => rows.push((field, vec![section.place.to_owned()])),
            }
        }
    }
    let mut table = "| field | where | type | default | what it says |\n|---|---|---|---|---|\n".to_owned();
    for (field, places) in rows {
        let about =
            if field.built { field.about.to_owned() } else { format!("not supported yet: {}", field.about) };
        let place = match field.only {
            [] => places.join(", "),
            only => format!("{} with `{}`", places.join(", "), only.join("`, `")),
        };
        let kind = if field.built { phrase(field.kind) } else { String::new() };
        // Writing into a string cannot fail.
        let _ = writeln!(table, "| `{}` | {place} | {kind} | {} | {about} |", field.name, default(field));
    }
    table
}

/// Returns the default of a field.
fn default(field: &Field) -> &'static str {
    match (field.required, field.default, field.built) {
        (true, ..) => "must be there",
        (_, "", true) => "none",
        (_, default, _) => default,
    }
}

/// Describes the type of a value.
fn phrase(kind: FieldKind) -> String {
    match kind {
        FieldKind::Any => "any value".to_owned(),
        FieldKind::Name => "name".to_owned(),
        FieldKind::Text => "text".to_owned(),
        FieldKind::Boolean => "`true`, `false`".to_owned(),
        FieldKind::Whole(least, most) => format!("whole number, {} to {}", grouped(least), grouped(most)),
        FieldKind::Rate => "rate, or `unlimited`".to_owned(),
        FieldKind::Time => "time, such as `15min`".to_owned(),
        FieldKind::Percent => "percentage".to_owned(),
        FieldKind::Words(words) => format!("`{}`", words.join("`, `")),
        FieldKind::List(items) => {
            let items = match items {
                FieldKind::Either(kinds) => {
                    kinds.iter().map(|kind| plural(*kind)).collect::<Vec<_>>().join(" or ")
                }
                kind => plural(*kind),
            };
            format!("list of {items}")
        }
        FieldKind::Attributes(value) => format!("mapping: attribute → {}", phrase(*value)),
        FieldKind::Named(value) => format!("mapping: name → {}", phrase(*value)),
        FieldKind::Point => "point".to_owned(),
        FieldKind::Section(name) => format!("mapping ({name})"),
        FieldKind::Either(kinds) => kinds.iter().map(|kind| phrase(*kind)).collect::<Vec<_>>().join(", or "),
    }
}

fn plural(kind: FieldKind) -> String {
    match kind {
        FieldKind::Section(name) => match name.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{name}s"),
        },
        kind => format!("{}s", phrase(kind)),
    }
}

/// Groups digits: `4 294 967 295`.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns a JSON Schema (draft 2020-12) of a rules file. It accepts some files that the reader rejects.
#[must_use]
pub fn schema() -> Value {
    let sections = SECTIONS.iter().map(|section| (id(section.name), mapping(section)));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tidegate rules",
        "description": "Made from the tables that the daemon reads by. `tidegate check` says more.",
        "$ref": "#/$defs/file",
        "$defs": sections.collect::<Map<_, _>>(),
    })
}

fn mapping(section: &FieldSection) -> Value {
    let properties = section.fields.iter().map(|field| (field.name.to_owned(), property(field)));
    let required: Vec<_> =
        section.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    let mut mapping = json!({
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "required": required,
        "additionalProperties": false,
    });
    // A shadow rule has the algorithm of its rule by default, which a schema cannot look up.
    let is_rule = required.contains(&"rate") && section.fields.iter().any(|field| field.name == "algorithm");
    let strangers: Vec<_> =
        section.fields.iter().filter(|field| is_rule && !field.only.is_empty()).map(only).collect();
    if let (false, Some(mapping)) = (strangers.is_empty(), mapping.as_object_mut()) {
        mapping.insert("allOf".to_owned(), strangers.into());
    }
    mapping
}

fn property(field: &Field) -> Value {
    if !field.built {
        return json!({"description": format!("Not supported yet: {}.", field.about), "not": {}});
    }
    let mut property = value(field.kind);
    let default =
        if field.default.is_empty() { String::new() } else { format!(" Default: {}.", field.default) };
    if let Some(property) = property.as_object_mut() {
        property.insert("description".to_owned(), format!("{}.{default}", field.about).into());
    }
    property
}

/// Restricts the field to the algorithms that have it.
fn only(field: &Field) -> Value {
    let algorithm = json!({"properties": {"algorithm": {"enum": field.only}}});
    let mut then = algorithm;
    if !field.only.contains(&"token_bucket")
        && let Some(then) = then.as_object_mut()
    {
        // The default algorithm.
        then.insert("required".to_owned(), json!(["algorithm"]));
    }
    json!({"if": {"required": [field.name]}, "then": then})
}

fn value(kind: FieldKind) -> Value {
    match kind {
        FieldKind::Any => json!({}),
        FieldKind::Name => json!({"type": SCALAR, "pattern": "^[^:/\\u0000-\\u001f\\u007f]{1,64}$"}),
        FieldKind::Text => json!({"type": SCALAR}),
        FieldKind::Boolean => json!({"type": "boolean"}),
        FieldKind::Whole(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        FieldKind::Rate => {
            let units = unit_names().collect::<Vec<_>>().join("|");
            json!({"type": "string", "pattern": format!("^(unlimited|[1-9][0-9]*/([1-9][0-9]*)?({units}))$")})
        }
        FieldKind::Time => {
            let units = unit_names().collect::<Vec<_>>().join("|");
            json!({"type": "string", "pattern": format!("^[1-9][0-9]*({units})$")})
        }
        FieldKind::Percent => json!({"type": "string", "pattern": "^[0-9]{1,4}([.][0-9])?%$"}),
        FieldKind::Words(words) => json!({"enum": words}),
        FieldKind::List(items) => json!({"type": "array", "items": value(*items)}),
        FieldKind::Attributes(of) | FieldKind::Named(of) => {
            json!({"type": "object", "additionalProperties": value(*of)})
        }
        FieldKind::Point => {
            json!({"type": "array", "items": {"anyOf": [value(FieldKind::Whole(0, u32::MAX)), value(FieldKind::Percent)]}})
        }
        FieldKind::Section(name) => json!({"$ref": format!("#/$defs/{}", id(name))}),
        FieldKind::Either(kinds) => {
            json!({"anyOf": kinds.iter().map(|kind| value(*kind)).collect::<Vec<_>>()})
        }
    }
}

fn id(section: &str) -> String {
    section.replace(' ', "_")
}

/// Numbers and booleans are read as texts, as written.
const SCALAR: [&str; 3] = ["string", "number", "boolean"];
