//! Differences between two rule sets. A rule that only moved in its file is unchanged.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Domain;
use super::condition::joined;
use super::problem::shortened;
use super::rule::RuleField;
use crate::terms::counted;

/// Compares two lists of domains. Returns the changes by domain, one line each, in the order of the new rules; removed domains
/// come last. Of thousands of changes it returns the first few hundred, and a count of the rest.
pub fn changes(old: &[Arc<Domain>], new: &[Arc<Domain>]) -> Vec<String> {
    let mut changes = Vec::new();
    let before: HashMap<&str, &Arc<Domain>> = old.iter().map(|domain| (domain.name(), domain)).collect();
    let rules = |domain: &Domain| counted(domain.rules().len(), "rule");
    for domain in new {
        match before.get(domain.name()) {
            None => changes.push(format!("{}: new, {}", domain.name(), rules(domain))),
            Some(known) if Arc::ptr_eq(known, domain) => {}
            Some(known) => compare(known, domain, &mut changes),
        }
    }
    let now: HashSet<&str> = new.iter().map(|domain| domain.name()).collect();
    let removed = old.iter().filter(|domain| !now.contains(domain.name()));
    changes.extend(removed.map(|domain| {
        format!("{}: removed with its {}: it has NO LIMITS now", domain.name(), rules(domain))
    }));
    let more = changes.len().saturating_sub(LINES_MAX);
    changes.truncate(LINES_MAX);
    changes.extend((more > 0).then(|| format!("and {more} more changes")));
    changes
}

/// Returns all parts of a domain: their names in differences, and their fields.
fn parts(domain: &Domain) -> Vec<(String, Vec<RuleField>)> {
    let name = domain.name();
    let rules = domain.rules().iter().map(|rule| (format!("{name}/{}", rule.name), rule.fields()));
    let lists = domain.lists().iter().map(|listed| (format!("{name}/{}", listed.name), listed.fields()));
    let sheds = domain.sheds().iter();
    let sheds =
        sheds.map(|shed| (format!("{name}: the pool {}", shed.pool), shed.fields(domain.priorities())));
    rules.chain(lists).chain(sheds).collect()
}

/// Compares one domain: its parts in their new order, then removed ones.
fn compare(old: &Domain, new: &Domain, changes: &mut Vec<String>) {
    let (before, now) = (parts(old), parts(new));
    let known: HashMap<&str, &Vec<RuleField>> =
        before.iter().map(|(name, fields)| (&**name, fields)).collect();
    for (name, fields) in &now {
        match known.get(&**name) {
            None => {
                let fields = fields
                    .iter()
                    .map(|(field, text)| format!("{field} {}", shortened(text, SHOWN_CHARACTERS)));
                changes.push(format!("{name}: added: {}", joined(fields)));
            }
            Some(known) => changes.extend(changed(name, known, fields)),
        }
    }
    let now: HashSet<&str> = now.iter().map(|(name, _)| &**name).collect();
    let removed = before.iter().filter(|(name, _)| !now.contains(&**name));
    changes.extend(removed.map(|(name, _)| format!("{name}: removed")));
}

fn changed(name: &str, old: &[RuleField], new: &[RuleField]) -> Option<String> {
    let mut fields: Vec<_> = old.iter().map(|(field, text)| (*field, Some(&**text), None)).collect();
    for (field, text) in new {
        match fields.iter_mut().find(|(known, ..)| known == field) {
            Some((_, _, now)) => *now = Some(&**text),
            None => fields.push((field, None, Some(text))),
        }
    }
    fields.retain(|(_, old, new)| old != new);
    if fields.is_empty() {
        return None;
    }
    let texts: Vec<_> = fields.iter().map(|(field, old, new)| from_to(field, *old, *new)).collect();
    let fresh = match fields.iter().any(|(field, ..)| STATE_FIELDS.contains(field)) {
        true => STARTS_FRESH,
        false => "",
    };
    Some(format!("{name}: {}{fresh}", texts.join(", ")))
}

fn from_to(field: &str, old: Option<&str>, new: Option<&str>) -> String {
    // The default of a field that is absent.
    let absent = if field == "scope" { "host" } else { "none" };
    let [old, new] = [old, new].map(|text| shortened(text.unwrap_or(absent), SHOWN_CHARACTERS));
    // Long texts may differ only in the part that is cut off.
    if old == new { format!("{field} changed") } else { format!("{field} {old} → {new}") }
}

const STATE_FIELDS: [&str; 6] = ["algorithm", "window", "key", "unit", "buckets", "scope"];

/// The end of the change of a rule whose counts are dropped.
pub const STARTS_FRESH: &str = "; its counts are dropped, it starts fresh";

/// A log with more lines is not read.
const LINES_MAX: usize = 200;

/// The width of a wide terminal, in characters.
const SHOWN_CHARACTERS: usize = 160;
