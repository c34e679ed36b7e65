//! A type name is defined in one file of src/, so that a search finds one thing.

use std::collections::BTreeMap;

use super::product;
use super::source::tokens;

/// Names with one meaning everywhere: the options of a command.
const GENERIC: &[&str] = &["Args", "Config", "Error", "State"];

/// The types that a file defines at its top level, without those of its tests.
fn types(text: &str) -> Vec<String> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let tokens = tokens(product);
    let mut depth = 0;
    let mut types = Vec::new();
    for pair in tokens.windows(2) {
        match pair[0].text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "struct" | "enum" | "trait" | "type" if depth == 0 => types.push(pair[1].text.clone()),
            _ => {}
        }
    }
    types
}

#[test]
fn type_names_are_unique() {
    let files = product();
    let mut places = BTreeMap::<String, Vec<&str>>::new();
    for (path, text) in &files {
        types(text).into_iter().for_each(|name| places.entry(name).or_default().push(path));
    }
    assert!(places.len() > 500, "the types were found: {}", places.len());
    places.retain(|name, places| places.len() > 1 && !GENERIC.contains(&name.as_str()));
    assert!(places.is_empty(), "give each a name of its own: {places:#?}");
}

#[test]
fn finds_types_outside_of_impls_and_tests() {
    let text = "pub struct One;\nimpl Two for One {\n    type Inner = u8;\n}\n#[cfg(test)]\nmod tests {\n    struct Three;\n}\n";
    assert_eq!(types(text), ["One"]);
}
