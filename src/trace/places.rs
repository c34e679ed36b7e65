//! Stable indexes for per-rule data: by name, so that a rule keeps its index over every reload.

use std::collections::HashMap;
use std::sync::Arc;

use crate::rules::Domain;

/// An index, from 0, for each rule that was ever in force.
#[derive(Debug, Default)]
pub(super) struct RuleIndexes {
    /// For each domain in force the indexes of its rules, by rule number.
    domains: HashMap<Box<str>, Vec<usize>>,
    by_name: HashMap<(Box<str>, Box<str>), usize>,
}

impl RuleIndexes {
    /// Records the numbering of the rules in force.
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

    /// The indexes of a domain's rules, by rule number; empty if the domain is not in force.
    pub(super) fn of(&self, domain: &str) -> &[usize] {
        self.domains.get(domain).map(Vec::as_slice).unwrap_or_default()
    }

    /// The index of a rule that was ever in force.
    pub(super) fn find(&self, domain: &str, rule: &str) -> Option<usize> {
        self.by_name.get(&(domain.into(), rule.into())).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}
