//! Differences between two rule sets. A rule that only moved in its file is unchanged.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::facts::{Fact, facts};
use super::problem::on_one_line;
use super::shed::Shed;
use super::shed_facts::shed_facts;
use super::{Domain, Rule};

/// The changes by domain, in the order of the new rules; removed domains come last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    changes: Vec<RuleChange>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleChange {
    DomainAdded {
        domain: Box<str>,
        rules: usize,
    },
    DomainRemoved {
        domain: Box<str>,
        rules: usize,
    },
    RuleAdded {
        name: String,
        facts: Vec<Fact>,
    },
    RuleRemoved {
        name: String,
    },
    /// Changed fields: name, old text, new text; `None` if absent.
    RuleChanged {
        name: String,
        fields: Vec<(&'static str, Option<String>, Option<String>)>,
    },
}

/// Fields whose change discards the state of a rule.
const STATE_FIELDS: [&str; 8] =
    ["algorithm", "window", "key", "unit", "buckets", "align", "timezone", "scope"];

impl Difference {
    /// Compares two lists of domains.
    #[must_use]
    pub fn between(old: &[Arc<Domain>], new: &[Arc<Domain>]) -> Difference {
        let mut changes = Vec::new();
        let before: HashMap<&str, &Arc<Domain>> = old.iter().map(|domain| (domain.name(), domain)).collect();
        for domain in new {
            match before.get(domain.name()) {
                None => changes.push(RuleChange::DomainAdded {
                    domain: domain.name().into(),
                    rules: domain.rules().len(),
                }),
                Some(known) if Arc::ptr_eq(known, domain) => {}
                Some(known) => compare(known, domain, &mut changes),
            }
        }
        let now: HashSet<&str> = new.iter().map(|domain| domain.name()).collect();
        let gone = old.iter().filter(|domain| !now.contains(domain.name()));
        changes.extend(gone.map(|domain| RuleChange::DomainRemoved {
            domain: domain.name().into(),
            rules: domain.rules().len(),
        }));
        Difference { changes }
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Describes the changes, one line each: the first few hundred, and a count of the rest.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let more = self.changes.len().saturating_sub(LINES_MAX);
        let rest = (more > 0).then(|| format!("and {more} more changes"));
        self.changes.iter().take(LINES_MAX).map(RuleChange::line).chain(rest)
    }
}

/// Compares one domain: rules in their new order, then removed ones.
fn compare(old: &Domain, new: &Domain, changes: &mut Vec<RuleChange>) {
    let name = |rule: &Rule| format!("{}/{}", new.name(), rule.name);
    let before: HashMap<&str, &Rule> = old.rules().iter().map(|rule| (&*rule.name, rule)).collect();
    for rule in new.rules() {
        match before.get(&*rule.name) {
            None => changes.push(RuleChange::RuleAdded { name: name(rule), facts: facts(rule) }),
            Some(known) => {
                let fields = differing(facts(known), facts(rule));
                if !fields.is_empty() {
                    changes.push(RuleChange::RuleChanged { name: name(rule), fields });
                }
            }
        }
    }
    compare_sheds(old, new, changes);
    let now: HashSet<&str> = new.rules().iter().map(|rule| &*rule.name).collect();
    let gone = old.rules().iter().filter(|rule| !now.contains(&*rule.name));
    changes.extend(gone.map(|rule| RuleChange::RuleRemoved { name: name(rule) }));
}

fn compare_sheds(old: &Domain, new: &Domain, changes: &mut Vec<RuleChange>) {
    let name = |shed: &Shed| format!("{}: the pool {}", new.name(), shed.pool);
    let find = |domain: &'_ Domain, pool: &str| domain.sheds().iter().position(|shed| *shed.pool == *pool);
    for shed in new.sheds() {
        let facts = shed_facts(shed, new.priorities());
        match find(old, &shed.pool).and_then(|known| old.sheds().get(known)) {
            None => changes.push(RuleChange::RuleAdded { name: name(shed), facts }),
            Some(known) => {
                let fields = differing(shed_facts(known, old.priorities()), facts);
                if !fields.is_empty() {
                    changes.push(RuleChange::RuleChanged { name: name(shed), fields });
                }
            }
        }
    }
    let gone = old.sheds().iter().filter(|shed| find(new, &shed.pool).is_none());
    changes.extend(gone.map(|shed| RuleChange::RuleRemoved { name: name(shed) }));
}

fn differing(old: Vec<Fact>, new: Vec<Fact>) -> Vec<(&'static str, Option<String>, Option<String>)> {
    let mut before: Vec<_> = old.into_iter().map(|(field, text)| (field, Some(text), None)).collect();
    for (field, text) in new {
        match before.iter_mut().find(|(known, ..)| *known == field) {
            Some((_, _, now)) => *now = Some(text),
            None => before.push((field, None, Some(text))),
        }
    }
    before.retain(|(_, old, new)| old != new);
    before
}

impl RuleChange {
    fn line(&self) -> String {
        match self {
            RuleChange::DomainAdded { domain, rules } => format!("{domain}: new, {}", counted(*rules)),
            RuleChange::DomainRemoved { domain, rules } => {
                format!("{domain}: removed with its {}: it has NO LIMITS now", counted(*rules))
            }
            RuleChange::RuleAdded { name, facts } => {
                let facts: Vec<_> =
                    facts.iter().map(|(field, text)| format!("{field} {}", shown(text))).collect();
                format!("{name}: added: {}", facts.join(", "))
            }
            RuleChange::RuleRemoved { name } => format!("{name}: removed"),
            RuleChange::RuleChanged { name, fields } => {
                let changed: Vec<_> =
                    fields.iter().map(|(field, old, new)| from_to(field, old, new)).collect();
                let fresh = match fields.iter().any(|(field, ..)| STATE_FIELDS.contains(field)) {
                    true => "; what it has counted so far is dropped, it starts fresh",
                    false => "",
                };
                format!("{name}: {}{fresh}", changed.join(", "))
            }
        }
    }
}

fn from_to(field: &str, old: &Option<String>, new: &Option<String>) -> String {
    // The default of a field that is absent.
    let absent = if field == "scope" { "host" } else { "none" };
    let [old, new] = [old, new].map(|text| text.as_deref().map_or_else(|| absent.to_owned(), shown));
    // Long texts may differ only in the part that is cut off.
    if old == new { format!("{field} changed") } else { format!("{field} {old} → {new}") }
}

fn counted(rules: usize) -> String {
    if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") }
}

/// Shows a text on one line, shortened.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS).and_then(|(byte, _)| text.get(..byte)) {
        Some(start) => format!("{}…", on_one_line(start)),
        None => on_one_line(text),
    }
}

/// A log with more lines is not read.
const LINES_MAX: usize = 200;

/// The width of a wide terminal, in characters.
const SHOWN_CHARACTERS: usize = 160;
