//! A domain that is being read: complete at the end, or broken and left out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::meaning::{ReadListEntry, ReadPriorities, ReadRule, UnsettledShed};
use super::problem::{Problem, shown};
use super::shed::Shed;
use super::source::{Report, Source, Span};
use super::tree::{Branch, Tree, rule_name, rule_name_apart};
use super::{Domain, DomainContents, ListedEntry, Position, Priorities, Rule};

/// A domain under construction, to which each file adds.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: Box<str>,
    /// Whether one of its files has an error.
    pub(super) broken: bool,
    rules: Vec<Rule>,
    lists: Vec<ListedEntry>,
    unsettled: Vec<UnsettledShed>,
    sheds: Vec<Shed>,
    pub(super) priorities: ReadPriorities,
    settled: Priorities,
    places: HashMap<Box<str>, (Position, Span)>,
    /// The roots of the descriptor tree.
    branches: Vec<Branch>,
    /// Their positions, by text.
    tops: HashMap<Box<str>, Position>,
    /// Positions of the tree nodes with limits, by rule name.
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
            priorities: ReadPriorities::default(),
            settled: Priorities::default(),
            places: HashMap::new(),
            branches: Vec::new(),
            tops: HashMap::new(),
            nodes: HashMap::new(),
        }
    }

    /// Adds a rule that was read. A rule with errors reserves its name too.
    pub(super) fn add(&mut self, meant: ReadRule, report: &mut Report<'_>) {
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

    /// Adds a root node of the descriptor tree with its subtree.
    pub(super) fn graft(&mut self, mut branch: Branch, report: &mut Report<'_>) {
        if let Some(first) = self.tops.get(&branch.text) {
            // Duplicates within one file are reported by its reader.
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

    /// Reserves a name for the rule of a node. Two nodes may have the same readable name, as generated names
    /// can collide; the second one then gets a distinct name.
    fn name_node(
        &mut self,
        path: &[&str],
        position: &Position,
        at: Span,
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

    /// Names in `replaces` that no limit has: file, span and name of each.
    pub(super) fn unknown_replaced(&self) -> Vec<(&Arc<str>, Span, &str)> {
        let mut limits = Vec::new();
        self.branches.iter().for_each(|branch| branch.limits(&mut limits));
        let names: HashSet<&str> = limits.iter().filter_map(|(_, limit)| limit.name.as_deref()).collect();
        let replaced = limits
            .iter()
            .flat_map(|(file, limit)| limit.replaces.iter().map(|(name, at)| (*file, *at, &**name)));
        replaced.filter(|(_, _, name)| !names.contains(name)).collect()
    }

    pub(super) fn add_listed(&mut self, meant: ReadListEntry, report: &mut Report<'_>) {
        if !meant.name.is_none_or(|(name, at)| self.take(name, at, "rule or entry", report)) {
            return;
        }
        match meant.listed {
            Some(listed) if self.places.len() <= RULES_MAX => self.lists.push(listed),
            _ => self.broken = true,
        }
    }

    pub(super) fn add_shed(&mut self, entry: UnsettledShed, at: Span, report: &mut Report<'_>) {
        if self.unsettled.len() == SHEDS_MAX {
            let message = format!("more than {SHEDS_MAX} pools are shed in the domain {}", shown(&self.name));
            report.error(at, message, "write an entry for each kind of process, not for each process");
        }
        self.unsettled.push(entry);
    }

    /// Reserves a name; reports a duplicate and returns `false`.
    fn take(&mut self, name: Box<str>, at: Span, what: &str, report: &mut Report<'_>) -> bool {
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

    /// Runs the checks that need all files of the domain.
    pub(super) fn settle(&mut self, sources: &HashMap<&Arc<str>, &Source>) -> Vec<Problem> {
        let (priorities, mut problems) = self.priorities.settle(!self.broken, sources);
        problems.extend(self.settle_sheds(sources));
        self.settled = priorities;
        self.broken |= problems.iter().any(Problem::is_error);
        problems
    }

    /// Resolves the priorities that `shed` entries name.
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

    /// Returns the rules read so far, in file order.
    pub(super) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(super) fn lists(&self) -> &[ListedEntry] {
        &self.lists
    }

    pub(super) fn sheds(&self) -> bool {
        !self.sheds.is_empty()
    }

    /// Returns the span of a rule's or an entry's name in its file.
    pub(super) fn place(&self, name: &str) -> Span {
        self.places.get(name).map_or(Span::START, |(_, place)| *place)
    }

    fn tell_too_many(&self, at: Span, report: &mut Report<'_>) {
        let message = format!("more than {RULES_MAX} rules in the domain {}", shown(&self.name));
        report.error(at, message, "count by an attribute instead of listing its values");
    }

    pub(super) fn into_domain(self) -> Domain {
        let Draft { name, rules, lists, sheds, settled: priorities, branches, .. } = self;
        let tree = Tree::new(branches);
        Domain::with(&name, DomainContents { rules, lists, priorities, sheds, tree })
    }
}

/// Each is evaluated four times a second.
const SHEDS_MAX: usize = 64;

/// Read within a few seconds. More rules are usually one per customer, which a `key` replaces.
const RULES_MAX: usize = 100_000;
