//! Reader of `priorities` and `prioritize`.

use super::conditions_of;
use crate::rules::Prioritize;
use crate::rules::de::{self, Mapping};
use crate::rules::file::PrioritizeFields;
use crate::rules::problem::shown;
use crate::rules::source::Report;
use crate::rules::values::Name;
use crate::rules::yaml::{Value, YamlNode};

/// Reads the names of the priorities, highest first; `None` after errors.
pub(crate) fn priorities(node: &YamlNode, report: &mut Report<'_>) -> Option<Vec<Box<str>>> {
    let errors_before = report.errors();
    // The reader of the file reports a value that is no list.
    let Value::List(items) = &node.value else { return None };
    if items.is_empty() {
        let help = "write `priorities: [MOST IMPORTANT, …, LEAST]`";
        report.error(node.at, "`priorities` has an empty list", help);
    }
    if items.len() > PRIORITIES_MAX {
        let message = format!("`priorities` has {} names", items.len());
        report.error(node.at, message, format!("write at most {PRIORITIES_MAX}: four are usual"));
        return None;
    }
    let mut names: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        let Some(Name(name)) = de::value(item, "priorities", report) else { continue };
        if report.is_new(item.at, name, names.iter().map(|known| &**known), "priorities") {
            names.push(name.into());
        }
    }
    (report.errors() == errors_before).then_some(names)
}

/// Reads an entry of `prioritize`. `names` are the priorities of its domain; `None` if they are unknown.
pub(crate) fn prioritize(
    node: &YamlNode,
    names: Option<&[Box<str>]>,
    report: &mut Report<'_>,
) -> Option<Prioritize> {
    let fields: PrioritizeFields<'_> = de::read(node, report)?;
    let mapping = Mapping(node);
    let conditions = conditions_of(mapping, report)?;
    let (wanted, names) = (fields.priority.0, names?);
    let Some(priority) = names.iter().position(|name| **name == *wanted) else {
        let message = format!("unknown priority {}", shown(wanted));
        report.error(mapping.at("priority"), message, suggest(wanted, names));
        return None;
    };
    Some(Prioritize { position: report.source().position(node.at), conditions, priority })
}

/// Suggests the nearest known name, or lists all of them.
pub(super) fn suggest(name: &str, known: &[Box<str>]) -> String {
    match de::nearest(name, known.iter().map(|name| &**name), de::TYPO) {
        Some(near) => format!("did you mean {}?", shown(near)),
        None => {
            let known: Vec<_> = known.iter().map(|name| shown(name)).collect();
            format!("`priorities` has {}", known.join(", "))
        }
    }
}

/// Shedding iterates over them.
const PRIORITIES_MAX: usize = 64;
