//! The field table in the docs and the schema for editors agree with the reader, and the examples with them.

use std::fs;

use regex::Regex;
use serde_json::{Value, json};
use tidegate::rules::schema;
use tidegate::rules::source::Source;
use tidegate::rules::yaml::{self, ScalarKind, YamlNode};

use crate::docs::{keep, keep_part, path};

/// The name of a field, its type, its meaning, and its positions with their defaults.
type FieldRow = (String, String, String, Vec<(String, String)>);

/// Returns the Markdown table of all fields by name: one row for each meaning of a field.
fn field_table() -> String {
    let schema = schema();
    let mut rows: Vec<FieldRow> = Vec::new();
    let defs = schema["$defs"].as_object().unwrap();
    let first = [("file", &schema), ("rule", &schema["$defs"]["rule"])];
    let others = defs.iter().map(|(name, of)| (name.as_str(), of)).filter(|(name, _)| *name != "rule");
    for (section, mapping) in first.into_iter().chain(others) {
        let place = mapping["x-place"].as_str().unwrap_or_else(|| panic!("{section} has no place"));
        let required = mapping["required"].as_array();
        for (name, field) in mapping["properties"].as_object().unwrap() {
            let about = field["description"].as_str().unwrap_or_else(|| panic!("{section}: {name}"));
            let (about, default) = about.split_once(" Default: ").unwrap_or((about, "none."));
            let default = match required.is_some_and(|required| required.contains(&json!(name))) {
                true => "must be there",
                false => default.trim_end_matches('.'),
            };
            let place = (place.to_owned(), default.to_owned());
            let about = about.trim_end_matches('.').to_owned();
            let same = rows.iter_mut().find(|(known, _, text, _)| known == name && *text == about);
            match same {
                Some((.., places)) => places.push(place),
                None => rows.push((name.clone(), phrase(field), about, vec![place])),
            }
        }
    }
    rows.sort();
    let mut table = "| field | where | type | default | what it says |\n|---|---|---|---|---|\n".to_owned();
    for (name, kind, about, places) in rows {
        let default = places[0].1.clone();
        let only = schema["$defs"]["rule"]["allOf"].as_array().unwrap().iter();
        let only = only.clone().find(|only| only["if"]["required"][0] == *name);
        let only = only.filter(|_| places.iter().any(|(place, _)| place == "rule"));
        let mut places: Vec<_> = places
            .into_iter()
            .map(|(place, own)| if own == default { place } else { format!("{place} ({own})") })
            .collect();
        if let Some(only) = only {
            let words = &only["then"]["properties"]["algorithm"];
            places.last_mut().unwrap().push_str(&format!(" with {}", phrase(words)));
        }
        table += &format!("| `{name}` | {} | {kind} | {default} | {about} |\n", places.join(", "));
    }
    table
}

/// Describes the type of a value.
fn phrase(of: &Value) -> String {
    let join = |of: &Value, between: &str| {
        of.as_array().unwrap().iter().map(phrase).collect::<Vec<_>>().join(between)
    };
    if let Some(title) = of["title"].as_str() {
        return title.to_owned();
    }
    if let Some(section) = of["$ref"].as_str() {
        return format!("mapping ({})", section.rsplit('/').next().unwrap());
    }
    if let Some(words) = of["enum"].as_array() {
        let words: Vec<_> = words.iter().map(|word| format!("`{}`", word.as_str().unwrap())).collect();
        return words.join(", ");
    }
    if of["anyOf"].is_array() {
        return join(&of["anyOf"], ", or ");
    }
    match of["type"].as_str() {
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("array") => format!("list: {}", phrase(&of["items"])),
        Some("object") => format!("mapping: name → {}", phrase(&of["additionalProperties"])),
        Some("integer") => match (&of["minimum"], &of["maximum"]) {
            (least, Value::Null) => format!("whole number from {least}"),
            (least, most) => format!("whole number, {least} to {most}"),
        },
        _ => "any value".to_owned(),
    }
}

#[test]
fn docs_table_matches_parser() {
    keep_part("docs/rules.md", &field_table(), TEST);
}

#[test]
fn schema_matches_parser() {
    keep("config/rules.schema.json", &format!("{:#}\n", schema()), TEST);
}

#[test]
fn describes_every_field() {
    for row in field_table().lines().skip(2) {
        let cells: Vec<_> = row.split(" | ").collect();
        assert_eq!(cells.len(), 5, "{row}");
        let is_described = !cells[4].trim_end_matches(" |").ends_with(": ") && cells[4].len() > 8;
        assert!(is_described, "no description: {row}");
    }
}

#[test]
fn examples_match_schema() {
    let mut files = 0;
    for entry in fs::read_dir(path("config/rules")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "yaml") {
            files += 1;
            let source = Source::read(&file).unwrap();
            let wrong = wrong(&value(&yaml::read(&source).unwrap()), &schema());
            assert_eq!(wrong, Vec::<String>::new(), "{}", file.display());
            assert!(source.text().starts_with(MODELINE), "{} names its schema", file.display());
        }
    }
    assert!(files >= 3);
}

/// Fields of a rule, or sections of a file.
const VALID: &[&str] = &[
    "name: a, key: [], rate: 1/s",
    "name: a, key: [], rate: unlimited",
    "name: 7, key: [u, 9], rate: 5/15min, match: {s: [429, x], t: true}",
    "name: a, key: [], rate: 1/s, over: {soft: 12.5%, for: 60s}, block: 15min, warn_at: 80%",
    "name: a, key: [], rate: 1/s, algorithm: fixed_window, timezone: UTC, refused: counted",
    "name: a, key: [], rate: 1/s, candidate: {algorithm: leaky_bucket, queue: 0}",
    "name: a, key: [], rate: 1/s, overrides: [{match: {p: x}, rate: 9/s, burst: 1}]",
    "name: a, key: [{attribute: ip, ipv6_prefix: 64}], rate: 1/s, match: {ip: {not: {cidr: [::1/128]}}}",
    "name: a, key: [], rate: 1/s, match: {a: [x, {glob: '*', ignore_case: true}], b: {present: false}}",
    "name: a, key: [], rate: 1/s, scope: fleet, max_over: 5%, fleet: {on_miss: admit}",
    "name: a, key: [], rate: 1/s, scope: fleet, fleet: {on_redis_down: local}",
    "name: a, key: [], rate: 1/s, scope: fleet, fleet: {mode: exact}",
    "concurrency: [{name: a, key: [], max: 1}]",
    "concurrency: [{name: a, key: [], max: unlimited, expires: 2h, candidate: {max: 2}}]",
    "concurrency: [{name: a, key: [], max: 1, overrides: [{match: {p: x}, max: 2}]}]",
    "limits: [{name: a, key: [], rate: 1/s, refund_on: ok}]",
    "shed: [{pool: web, slots: 3, workers: {leak: 1/1800}, queue_age: {}, brake: {bands: [0%, 70%]}}]",
    "shed: [{pool: web, workers: {leak: 0, good: 70%, mode: shadow}, fleet: {reserve: 20%, for: a}}]",
    "shed: [{pool: web, signals: {accept_queue: {listen: 80, map: [[0, 0%], [3, 9%]]}, x: {}}}]",
];

const INVALID: &[&str] = &[
    "name: a, key: [{attribute: ip, ipv6_prefix: 129}], rate: 1/s",
    "name: a, key: [], rate: 1/s, match: {ip: {cdir: 10.0.0.0/8}}",
    "name: a, key: [], rate: 1/sec",
    "name: a, key: [], rate: 0/s",
    "name: a, key: []",
    "name: a/b, key: [], rate: 1/s",
    "name: a, key: u, rate: 1/s",
    "name: a, key: [], rate: 1/s, brust: 1",
    "name: a, key: [], rate: 1/s, burst: 0",
    "name: a, key: [], rate: 1/s, burst: '1'",
    "name: a, key: [], rate: 1/s, queue: 1",
    "name: a, key: [], rate: 1/s, algorithm: sliding_log, burst: 1",
    "name: a, key: [], rate: 1/s, algorithm: leaky_bucket, over: {soft: 10%}",
    "name: a, key: [], rate: 1/s, warn_at: 80",
    "name: a, key: [], rate: 1/s, block: 900",
    "name: a, key: [], rate: 1/s, mode: off",
    "name: a, key: [], rate: 1/s, scope: fleet, fleet: {on_mis: admit}",
    "name: a, key: [], rate: 1/s, on_redis_down: local",
    "name: a, key: [], rate: 1/s, candidate: {name: b}",
    "concurrency: [{name: a, key: []}]",
    "concurrency: [{name: a, key: [], max: 0}]",
    "concurrency: [{name: a, key: [], max: 1, rate: 1/s}]",
    "concurrency: [{name: a, key: [], max: 1, overrides: [{max: 2}]}]",
    "limits: [{name: a, key: [], rate: 1/s, max: 1}]",
    "limits: [{name: a, key: [], rate: 1/s, refund_on: ok, algorithm: leaky_bucket}]",
    "shed: [{slots: 3}]",
    "shed: [{pool: web, slots: 0}]",
    "shed: [{pool: web, workers: {good: 0.7}}]",
    "shed: [{pool: web, worker: {}}]",
    "shed: [{pool: web, fleet: {}}]",
    "shed: [{pool: web, signals: {x: {used: true}}}]",
    "shed: [{pool: web, signals: {x: {map: [5]}}}]",
];

#[test]
fn schema_rejects_typos() {
    for (texts, is_valid) in [(VALID, true), (INVALID, false)] {
        for text in texts {
            let text =
                if text.starts_with("name:") { format!("limits:\n- {{{text}}}") } else { (*text).to_owned() };
            let source = Source::new("", format!("domain: api\n{text}\n"));
            let wrong = wrong(&value(&yaml::read(&source).unwrap()), &schema());
            assert_eq!(wrong.is_empty(), is_valid, "{text}\n{wrong:#?}");
        }
    }
}

/// The value that an editor sees in a file.
fn value(node: &YamlNode) -> Value {
    match &node.value {
        yaml::Value::Null | yaml::Value::Unsettled(..) => Value::Null,
        yaml::Value::Scalar(ScalarKind::Text, text) => json!(text),
        yaml::Value::Scalar(_, text) => text.parse().unwrap_or_else(|_| json!(text)),
        yaml::Value::List(items) => items.iter().map(value).collect(),
        yaml::Value::Map(pairs) => {
            let pair = |(key, of): &(YamlNode, YamlNode)| {
                (key.as_scalar().unwrap_or_default().to_owned(), value(of))
            };
            Value::Object(pairs.iter().map(pair).collect())
        }
    }
}

/// The faults of a value by the JSON Schema keywords that ours uses; panics on another keyword.
fn wrong(value: &Value, schema: &Value) -> Vec<String> {
    let root = super::reference::schema();
    let mut found = Vec::new();
    check(value, schema, &root, "", &mut found);
    found
}

fn check(value: &Value, schema: &Value, root: &Value, at: &str, found: &mut Vec<String>) {
    let valid = |schema: &Value| {
        let mut inner = Vec::new();
        check(value, schema, root, at, &mut inner);
        inner.is_empty()
    };
    for (word, says) in schema.as_object().unwrap() {
        let holds = match word.as_str() {
            "$schema" | "title" | "description" | "$defs" | "then" | "properties" | "x-place" => true,
            "$ref" => {
                check(value, root.pointer(&says.as_str().unwrap()[1..]).unwrap(), root, at, found);
                true
            }
            "type" => match says.as_array() {
                Some(types) => types.iter().any(|of| has_type(value, of)),
                None => has_type(value, says),
            },
            "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= says.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|list| list.len() as u64 <= says.as_u64().unwrap()),
            "prefixItems" => {
                for (place, (item, says)) in
                    value.as_array().into_iter().flatten().zip(says.as_array().unwrap()).enumerate()
                {
                    check(item, says, root, &format!("{at}/{place}"), found);
                }
                true
            }
            "enum" => says.as_array().unwrap().contains(value),
            "minimum" => value.as_i64().is_none_or(|number| number >= says.as_i64().unwrap()),
            "maximum" => value.as_i64().is_none_or(|number| number <= says.as_i64().unwrap()),
            "pattern" => {
                value.as_str().is_none_or(|text| Regex::new(says.as_str().unwrap()).unwrap().is_match(text))
            }
            "required" => value.as_object().is_none_or(|object| {
                says.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
            }),
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(item, says, root, &format!("{at}/{place}"), found);
                }
                true
            }
            "additionalProperties" => {
                for (name, of) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}/{name}");
                    match (schema.pointer(&format!("/properties/{name}")), says) {
                        (Some(known), _) => check(of, known, root, &at, found),
                        (None, Value::Bool(false)) => found.push(format!("{at}: unknown")),
                        (None, says) => check(of, says, root, &at, found),
                    }
                }
                true
            }
            "anyOf" => says.as_array().unwrap().iter().any(valid),
            "allOf" => says.as_array().unwrap().iter().all(valid),
            "not" => !valid(says),
            "if" => {
                let then = &schema["then"];
                let known = then["properties"]["algorithm"]["enum"].as_array().unwrap();
                let algorithm = value.get("algorithm").unwrap_or(&json!("token_bucket")).clone();
                !valid(says) || known.contains(&algorithm) && valid(then)
            }
            other => panic!("the schema has the word {other}"),
        };
        if !holds {
            found.push(format!("{at}: {word} {says}"));
        }
    }
}

fn has_type(value: &Value, of: &Value) -> bool {
    match of.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("{other}"),
    }
}

const TEST: &str = "pure rules::reference";
const MODELINE: &str = "# yaml-language-server: $schema=../rules.schema.json\n";
