//! A domain while its files are read: whole at the end, or broken and absent.

use std::collections::HashMap;
use std::sync::Arc;

use super::meaning::{Meant, MeantListed, MeantPriorities};
use super::problem::{Problem, shown};
use super::source::{Place, Report, Source};
use super::{Contents, Domain, Listed, Position, Priorities, Rule, unreachable};

/// A domain that more files may add to.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: Box<str>,
    /// Whether something in one of its files is wrong.
    pub(super) broken: bool,
    rules: Vec<Rule>,
    lists: Vec<Listed>,
    pub(super) priorities: MeantPriorities,
    settled: Priorities,
    places: HashMap<Box<str>, (Position, Place)>,
}

impl Draft {
    pub(super) fn new(name: &str) -> Draft {
        Draft {
            name: name.into(),
            broken: false,
            rules: Vec::new(),
            lists: Vec::new(),
            priorities: MeantPriorities::default(),
            settled: Priorities::default(),
            places: HashMap::new(),
        }
    }

    /// Adds what was read of one rule. A name is taken even by a rule that is wrong otherwise.
    pub(super) fn add(&mut self, meant: Meant, report: &mut Report<'_>) {
        if !meant.name.is_none_or(|(name, at)| self.take(name, at, "rule", report)) {
            return;
        }
        match meant.rule {
            Some(rule) if self.places.len() <= RULES_MAX => self.rules.push(rule),
            _ => self.broken = true,
        }
    }

    /// Adds what was read of one entry of a list, in the same way.
    pub(super) fn add_listed(&mut self, meant: MeantListed, report: &mut Report<'_>) {
        if !meant.name.is_none_or(|(name, at)| self.take(name, at, "rule or entry", report)) {
            return;
        }
        match meant.listed {
            Some(listed) if self.places.len() <= RULES_MAX => self.lists.push(listed),
            _ => self.broken = true,
        }
    }

    /// Takes a name, unless it is taken.
    fn take(&mut self, name: Box<str>, at: Place, what: &str, report: &mut Report<'_>) -> bool {
        if let Some((first, _)) = self.places.get(&name) {
            let message =
                format!("a second {what} named {} in the domain {}", shown(&name), shown(&self.name));
            report.error(at, message, format!("give it another name; the first is at {first}"));
            return false;
        }
        if self.places.len() == RULES_MAX {
            let message = format!("more than {RULES_MAX} rules in the domain {}", shown(&self.name));
            report.error(at, message, "count by an attribute instead of listing its values");
        }
        self.places.insert(name, (report.source().position(at), at));
        true
    }

    /// Judges what is known only when all files of the domain are read.
    pub(super) fn settle(&mut self, sources: &HashMap<&Arc<str>, &Source>) -> Vec<Problem> {
        let (priorities, mut problems) = self.priorities.settle(!self.broken, sources);
        self.settled = priorities;
        self.broken |= problems.iter().any(Problem::is_error);
        if !self.broken {
            let place = |name: &str| self.places.get(name).map_or(Place::START, |(_, place)| *place);
            problems.extend(unreachable::covered(&self.rules, &self.lists, sources, place));
        }
        problems
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
        let Draft { name, rules, lists, settled: priorities, .. } = self;
        Domain::with(&name, Contents { rules, lists, priorities })
    }
}

/// Read within a few seconds; past that a rule for every customer should have been an attribute.
const RULES_MAX: usize = 100_000;
