//! JSON Schema of rules files, derived from their fields.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::file::{ONLY, RulesFile};

/// Returns a JSON Schema (draft 2020-12) of a rules file. It accepts some files that the reader rejects.
pub fn schema() -> Value {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<RulesFile<'_>>();
    let mut schema = schema.to_value();
    tidy(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), "tidegate rules".into());
        let about = "Made from the fields that the daemon reads. `tidegate check` says more.";
        root.insert("description".to_owned(), about.into());
    }
    // A shadow rule has the algorithm of its rule by default, which a schema cannot look up.
    if let Some(Value::Object(rule)) = schema.pointer_mut("/$defs/rule") {
        let only = ONLY.iter().map(|(field, only)| {
            let has_default = only.contains(&super::file::Algorithm::default());
            let required: &[&str] = if has_default { &[] } else { &["algorithm"] };
            let then = json!({"properties": {"algorithm": {"enum": only}}, "required": required});
            json!({"if": {"required": [field]}, "then": then})
        });
        rule.insert("allOf".to_owned(), only.collect());
    }
    if let Some(Value::Object(fields)) = schema.pointer_mut("/$defs/candidate/properties") {
        for field in fields.values_mut().filter_map(Value::as_object_mut) {
            let about = field.get("description").and_then(Value::as_str).unwrap_or_default();
            let about = about.split(" Default: ").next().unwrap_or_default().trim_end_matches('.');
            let about = format!("{about}. Default: as in the rule.");
            field.insert("description".to_owned(), about.into());
        }
    }
    schema
}

/// Removes what the derive adds for types of Rust: `null` for optional fields, formats and defaults. Mappings
/// have no other fields than theirs.
fn tidy(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else {
        schema.as_array_mut().into_iter().flatten().for_each(tidy);
        return;
    };
    object.remove("format");
    object.remove("default");
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
        object.remove("type");
    }
    if let Some(Value::Array(kinds)) = object.get_mut("anyOf") {
        kinds.retain(|kind| *kind != json!({"type": "null"}));
        if let [Value::Object(only)] = kinds.as_mut_slice() {
            let only = std::mem::take(only);
            object.remove("anyOf");
            merge(object, only);
        }
    }
    if let Some(Value::Array(words)) = object.remove("oneOf") {
        let words = words.iter().filter_map(|word| word.get("const").cloned());
        object.insert("enum".to_owned(), words.collect());
    }
    if object.contains_key("properties") {
        object.insert("additionalProperties".to_owned(), false.into());
    }
    object.values_mut().for_each(tidy);
}

/// Adds the keys of another schema that this one lacks.
fn merge(schema: &mut Map<String, Value>, other: Map<String, Value>) {
    for (key, value) in other {
        schema.entry(key).or_insert(value);
    }
}
