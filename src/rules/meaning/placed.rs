//! Reports misplaced fields, with the place where they belong. Reads no values.

use std::borrow::Cow;

use crate::rules::fields::Field;
use crate::rules::source::Report;
use crate::rules::yaml::{Value, YamlNode};

/// Fields by name, and the place where they belong.
pub(super) type FieldHomes = &'static [(&'static [&'static str], &'static str)];

/// Removes and reports the fields of a mapping that belong elsewhere.
pub(super) fn placed<'n>(
    node: &'n YamlNode,
    what: &str,
    known: &[Field],
    homes: FieldHomes,
    report: &mut Report<'_>,
) -> Cow<'n, YamlNode> {
    let Value::Map(pairs) = &node.value else { return Cow::Borrowed(node) };
    let home_of = |key: &YamlNode| {
        let name = key.as_scalar().filter(|name| known.iter().all(|field| field.name != *name))?;
        homes.iter().find(|(names, _)| names.contains(&name)).map(|(_, home)| (name.to_owned(), *home))
    };
    let mut kept = Vec::new();
    for (key, value) in pairs {
        match home_of(key) {
            Some((name, home)) => {
                let message = format!("`{name}` does nothing in {what}");
                report.error(key.at, message, format!("it stands {home}: move it there, or leave it out"));
            }
            None => kept.push((key, value)),
        }
    }
    if kept.len() == pairs.len() {
        return Cow::Borrowed(node);
    }
    let kept = kept.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    Cow::Owned(YamlNode { at: node.at, value: Value::Map(kept) })
}
