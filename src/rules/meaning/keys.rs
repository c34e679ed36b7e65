//! `key` as meant: what a rule counts by.

use super::attribute;
use crate::rules::KeyPart;
use crate::rules::fields::{Fields, list};
use crate::rules::problem::shown;
use crate::rules::source::Report;
use crate::rules::written::KEY_PART;
use crate::rules::yaml::Value;

pub(super) fn key(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Vec<KeyPart>> {
    let mend = "write `key: [user]` to count each user apart, `key: []` for one counter";
    let node = fields.required("key", mend, report)?;
    let mend = match node.as_scalar() {
        Some(name) => format!("write `key: [{name}]`"),
        None => mend.to_owned(),
    };
    let items = list(node, "key", &mend, report)?;
    if items.len() > KEY_ATTRIBUTES_MAX {
        let message = format!("`key` has {} attributes", items.len());
        report.error(node.at, message, format!("write at most {KEY_ATTRIBUTES_MAX}"));
        return None;
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(items.len());
    for item in items {
        if let Value::Map(_) = item.value {
            if Fields::read(item, "an entry of `key`", KEY_PART, report)?.is_empty() {
                report.error(item.at, "an entry of `key` is empty", "write the name of an attribute");
            }
            continue;
        }
        let Some(attribute) = attribute(item, "key", report) else { continue };
        if key.iter().any(|known| *known.attribute == *attribute) {
            report.error(
                item.at,
                format!("{} is written twice in `key`", shown(attribute)),
                "keep one of the two",
            );
            continue;
        }
        key.push(KeyPart::plain(attribute));
    }
    Some(key)
}

/// As many as one descriptor can hold.
const KEY_ATTRIBUTES_MAX: usize = 16;
