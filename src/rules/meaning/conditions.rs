//! `match` as meant: conditions on attributes.

use super::attribute;
use crate::rules::fields::{Fields, text};
use crate::rules::problem::shown;
use crate::rules::source::Report;
use crate::rules::written::CONDITION;
use crate::rules::yaml::{Node, Value};
use crate::rules::{Condition, Pattern};

pub(super) fn conditions(node: &Node, report: &mut Report<'_>) -> Option<Vec<Condition>> {
    let Value::Map(pairs) = &node.value else {
        let message = format!("`match` is a mapping, not {}", node.kind());
        report.error(node.at, message, "write `match: {attribute: value}`, or leave it out to match all");
        return None;
    };
    if pairs.len() > CONDITIONS_MAX {
        let message = format!("`match` has {} attributes", pairs.len());
        report.error(node.at, message, format!("write at most {CONDITIONS_MAX}: each costs every request"));
        return None;
    }
    let mut conditions: Vec<Condition> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(attribute) = attribute(key, "match", report) else { continue };
        if conditions.iter().any(|known| *known.attribute == *attribute) {
            let message = format!("{} is written twice in `match`", shown(attribute));
            report.error(key.at, message, "write one list: any of its values will do");
            continue;
        }
        let any_of = patterns(attribute, value, report).unwrap_or_default();
        conditions.push(Condition { line: key.at.line, ..Condition::new(attribute, any_of) });
    }
    Some(conditions)
}

fn patterns(attribute: &str, node: &Node, report: &mut Report<'_>) -> Option<Vec<Pattern>> {
    let items = match &node.value {
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        let message = format!("{} has an empty list: the rule could never match", shown(attribute));
        report.error(node.at, message, "write at least one value, or `\"*\"` for any");
        return None;
    }
    if items.len() > VALUES_MAX {
        let message = format!("{} has {} values", shown(attribute), items.len());
        report.error(node.at, message, format!("write at most {VALUES_MAX}, or a pattern with `*`"));
        return None;
    }
    let patterns: Vec<_> = items.iter().filter_map(|item| pattern(attribute, item, report)).collect();
    Some(patterns)
}

fn pattern(attribute: &str, node: &Node, report: &mut Report<'_>) -> Option<Pattern> {
    if let Value::Map(_) = node.value {
        // Only to say which of its fields is not there yet, or never will be.
        if Fields::read(node, "a value of `match`", CONDITION, report)?.is_empty() {
            report.error(
                node.at,
                format!("{} has no value", shown(attribute)),
                "write a text or a list of texts",
            );
        }
        return None;
    }
    let text = text(node, attribute, report)?;
    if text.len() > VALUE_BYTES_MAX {
        let message = format!("a value of {} has {} bytes", shown(attribute), text.len());
        report.error(node.at, message, format!("write at most {VALUE_BYTES_MAX}: no attribute is longer"));
        return None;
    }
    if text.is_empty() {
        let message = format!("an empty value of {} never matches", shown(attribute));
        report.warning(node.at, message, "an empty attribute counts as absent: leave this value out");
    }
    Some(Pattern::parse(text))
}

/// Each is looked at for every request that comes near the rule.
const CONDITIONS_MAX: usize = 32;

/// Longer lists belong into a pattern, or into an attribute that the application adds.
const VALUES_MAX: usize = 1_000;

/// The longest value that the socket carries.
pub(super) const VALUE_BYTES_MAX: usize = 1_024;
