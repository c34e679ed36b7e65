//! Where what is kept of each rule stands: by its name, so that a rule keeps its place over every reload.

use std::collections::HashMap;
use std::sync::Arc;

use crate::rules::Domain;

/// A place for each rule that was ever in force, from 0.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// For each domain in force the places of its rules, by the rule's number.
    domains: HashMap<Box<str>, Vec<usize>>,
    by_name: HashMap<(Box<str>, Box<str>), usize>,
}

impl Places {
    /// Learns how the rules in force are numbered.
    pub(super) fn number(&mut self, rules: &[Arc<Domain>]) {
        self.domains.clear();
        for domain in rules {
            let places = domain.rules().iter().map(|rule| {
                let next = self.by_name.len();
                *self.by_name.entry((domain.name().into(), rule.name.clone())).or_insert(next)
            });
            let places = places.collect();
            self.domains.insert(domain.name().into(), places);
        }
    }

    /// The places of a domain's rules, by the rule's number; empty if it is not in force.
    pub(super) fn of(&self, domain: &str) -> &[usize] {
        self.domains.get(domain).map(Vec::as_slice).unwrap_or_default()
    }

    /// The place of a rule that was ever in force.
    pub(super) fn find(&self, domain: &str, rule: &str) -> Option<usize> {
        self.by_name.get(&(domain.into(), rule.into())).copied()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}
