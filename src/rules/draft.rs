//! A domain while its files are read: whole at the end, or broken and absent.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::meaning::{Meant, MeantListed, MeantPriorities, UnsettledShed};
use super::problem::{Problem, shown};
use super::shed::Shed;
use super::source::{Place, Report, Source};
use super::tree::{Branch, Tree, rule_name, rule_name_apart};
use super::{Contents, Domain, Listed, Position, Priorities, Rule};

/// A domain that more files may add to.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: Box<str>,
    /// Whether something in one of its files is wrong.
    pub(super) broken: bool,
    rules: Vec<Rule>,
    lists: Vec<Listed>,
    unsettled: Vec<UnsettledShed>,
    sheds: Vec<Shed>,
    pub(super) priorities: MeantPriorities,
    settled: Priorities,
    places: HashMap<Box<str>, (Position, Place)>,
    /// The top of the descriptor tree.
    branches: Vec<Branch>,
    /// Where each of them stands, by its text.
    tops: HashMap<Box<str>, Position>,
    /// Where the nodes of the tree that limit stand, by the names of their rules.
    nodes: HashMap<Box<str>, Position>,
}

impl Draft {
    pub(super) fn new(name: &str) -> Draft {
        Draft {
            name: name.into(),
            broken: false,
            rules: Vec::new(),
            lists: Vec::new(),
            unsettled: Vec::new(),
            sheds: Vec::new(),
            priorities: MeantPriorities::default(),
            settled: Priorities::default(),
            places: HashMap::new(),
            branches: Vec::new(),
            tops: HashMap::new(),
            nodes: HashMap::new(),
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
        if let Some((candidate, at)) = meant.candidate
            && self.take(candidate.name.clone(), at, "rule", report)
        {
            self.rules.push(candidate);
        }
    }

    /// Adds a node of the descriptor tree and what grows on it.
    pub(super) fn graft(&mut self, mut branch: Branch, report: &mut Report<'_>) {
        if let Some(first) = self.tops.get(&branch.text) {
            // Within one file the reader has said so.
            if first.file != branch.position.file {
                let message = format!(
                    "a second descriptor {} at the top of the domain {}",
                    shown(&branch.text),
                    shown(&self.name)
                );
                let mend = format!("put what is below it into one file; the first is at {first}");
                report.error(branch.at, message, mend);
            }
            return;
        }
        self.tops.insert(branch.text.clone(), branch.position.clone());
        let mut name = |path: &[&str], position: &Position, at| self.name_node(path, position, at, report);
        branch.name_rules(&mut Vec::new(), &mut name);
        self.branches.push(branch);
    }

    /// Takes a name for the rule of a node. That of another node is no error: what is written differently may read
    /// the same, and nobody chose the name.
    fn name_node(
        &mut self,
        path: &[&str],
        position: &Position,
        at: Place,
        report: &mut Report<'_>,
    ) -> Box<str> {
        let readable = rule_name(path);
        let is_taken = self.nodes.contains_key(&readable);
        let name = if is_taken { rule_name_apart(path) } else { readable };
        if let Some((first, _)) = self.places.get(&name) {
            let message = format!("a rule named {} stands in the domain {}", shown(&name), shown(&self.name));
            let mend = format!("a descriptor is named by its path: give the rule at {first} another name");
            report.error(at, message, mend);
        } else if self.places.len() + self.nodes.len() == RULES_MAX {
            self.tell_too_many(at, report);
        }
        self.nodes.insert(name.clone(), position.clone());
        name
    }

    /// What limits of the tree replace although no limit has the name: file, place and name of each.
    pub(super) fn unknown_replaced(&self) -> Vec<(&Arc<str>, Place, &str)> {
        let mut limits = Vec::new();
        self.branches.iter().for_each(|branch| branch.limits(&mut limits));
        let names: HashSet<&str> = limits.iter().filter_map(|(_, limit)| limit.name.as_deref()).collect();
        let replaced = limits
            .iter()
            .flat_map(|(file, limit)| limit.replaces.iter().map(|(name, at)| (*file, *at, &**name)));
        replaced.filter(|(_, _, name)| !names.contains(name)).collect()
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

    /// Adds an entry of `shed`.
    pub(super) fn add_shed(&mut self, entry: UnsettledShed, at: Place, report: &mut Report<'_>) {
        if self.unsettled.len() == SHEDS_MAX {
            let message = format!("more than {SHEDS_MAX} pools are shed in the domain {}", shown(&self.name));
            report.error(at, message, "write an entry for each kind of process, not for each process");
        }
        self.unsettled.push(entry);
    }

    /// Takes a name, unless it is taken.
    fn take(&mut self, name: Box<str>, at: Place, what: &str, report: &mut Report<'_>) -> bool {
        if let Some(first) = self.places.get(&name).map(|(first, _)| first).or(self.nodes.get(&name)) {
            let message =
                format!("a second {what} named {} in the domain {}", shown(&name), shown(&self.name));
            report.error(at, message, format!("give it another name; the first is at {first}"));
            return false;
        }
        if self.places.len() + self.nodes.len() == RULES_MAX {
            self.tell_too_many(at, report);
        }
        self.places.insert(name, (report.source().position(at), at));
        true
    }

    /// Judges what is known only when all files of the domain are read.
    pub(super) fn settle(&mut self, sources: &HashMap<&Arc<str>, &Source>) -> Vec<Problem> {
        let (priorities, mut problems) = self.priorities.settle(!self.broken, sources);
        problems.extend(self.settle_sheds(sources));
        self.settled = priorities;
        self.broken |= problems.iter().any(Problem::is_error);
        problems
    }

    /// Looks up the priorities that entries of `shed` speak of.
    fn settle_sheds(&mut self, sources: &HashMap<&Arc<str>, &Source>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let entries = std::mem::take(&mut self.unsettled);
        let Some(names) = self.priorities.names(!self.broken) else { return problems };
        for entry in entries {
            let Some(source) = sources.get(entry.file()) else {
                unreachable!("an entry is of a file that was read: its pool would not be shed")
            };
            let mut report = Report::new(source);
            self.sheds.push(entry.settle(names, &mut report));
            problems.extend(report.into_problems());
        }
        problems
    }

    /// The rules so far, in file order.
    pub(super) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The entries of `exempt` and `deny`.
    pub(super) fn lists(&self) -> &[Listed] {
        &self.lists
    }

    /// Whether it sheds any pool.
    pub(super) fn sheds(&self) -> bool {
        !self.sheds.is_empty()
    }

    /// Where the name of a rule or an entry stands in its file.
    pub(super) fn place(&self, name: &str) -> Place {
        self.places.get(name).map_or(Place::START, |(_, place)| *place)
    }

    fn tell_too_many(&self, at: Place, report: &mut Report<'_>) {
        let message = format!("more than {RULES_MAX} rules in the domain {}", shown(&self.name));
        report.error(at, message, "count by an attribute instead of listing its values");
    }

    pub(super) fn into_domain(self) -> Domain {
        let Draft { name, rules, lists, sheds, settled: priorities, branches, .. } = self;
        let tree = Tree::new(branches);
        Domain::with(&name, Contents { rules, lists, priorities, sheds, tree })
    }
}

/// Each is looked at four times a second.
const SHEDS_MAX: usize = 64;

/// Read within a few seconds; past that a rule for every customer should have been an attribute.
const RULES_MAX: usize = 100_000;
