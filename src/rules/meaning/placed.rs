//! Fields that stand in the wrong place: each is told where it belongs. It reads no value.

use std::borrow::Cow;

use crate::rules::fields::Field;
use crate::rules::source::Report;
use crate::rules::yaml::{Node, Value};

/// Fields by name, and where each of them stands.
pub(super) type Homes = &'static [(&'static [&'static str], &'static str)];

/// The mapping without those of its fields that stand elsewhere, each of which is an error that names its home.
pub(super) fn placed<'n>(
    node: &'n Node,
    what: &str,
    known: &[Field],
    homes: Homes,
    report: &mut Report<'_>,
) -> Cow<'n, Node> {
    let Value::Map(pairs) = &node.value else { return Cow::Borrowed(node) };
    let home_of = |key: &Node| {
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
    Cow::Owned(Node { at: node.at, value: Value::Map(kept) })
}
