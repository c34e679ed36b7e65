//! A domain while its files are read: whole at the end, or broken and absent.

use std::collections::HashMap;

use super::meaning::Meant;
use super::problem::shown;
use super::source::{Place, Report};
use super::{Domain, Position, Rule};

/// A domain that more files may add to.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: Box<str>,
    /// Whether something in one of its files is wrong.
    pub(super) broken: bool,
    rules: Vec<Rule>,
    places: HashMap<Box<str>, (Position, Place)>,
}

impl Draft {
    pub(super) fn new(name: &str) -> Draft {
        Draft { name: name.into(), broken: false, rules: Vec::new(), places: HashMap::new() }
    }

    /// Adds what was read of one rule. A name is taken even by a rule that is wrong otherwise.
    pub(super) fn add(&mut self, meant: Meant, report: &mut Report<'_>) {
        if let Some((name, at)) = meant.name {
            if let Some((first, _)) = self.places.get(&name) {
                let message =
                    format!("a second rule named {} in the domain {}", shown(&name), shown(&self.name));
                report.error(at, message, format!("give it another name; the first is at {first}"));
                return;
            }
            if self.places.len() == RULES_MAX {
                let message = format!("more than {RULES_MAX} rules in the domain {}", shown(&self.name));
                report.error(at, message, "count by an attribute instead of listing its values");
            }
            self.places.insert(name, (report.source().position(at), at));
        }
        match meant.rule {
            Some(rule) if self.rules.len() < RULES_MAX => self.rules.push(rule),
            _ => self.broken = true,
        }
    }

    /// The rules so far, in file order.
    pub(super) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Where in its file the name of a rule stands.
    pub(super) fn place(&self, rule: &Rule) -> Place {
        self.places.get(&rule.name).map_or(Place::START, |(_, place)| *place)
    }

    pub(super) fn into_domain(self) -> Domain {
        Domain::new(&self.name, self.rules)
    }
}

/// Read within a few seconds; past that a rule for every customer should have been an attribute.
const RULES_MAX: usize = 100_000;
