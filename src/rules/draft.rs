//! A domain that is being read: complete at the end, or broken and left out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::de::FileNode;
use super::meaning::{self, RuleAndCandidate, name_of};
use super::problem::{Problem, shown};
use super::source::{Report, Source, Span};
use super::tree::{Branch, Tree, rule_name, rule_name_apart};
use super::yaml::YamlNode;
use super::{Domain, DomainContents, ListedEntry, Position, Priorities};

/// A domain under construction, to which each file adds.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) name: Box<str>,
    pub(super) broken: bool,
    /// All but the descriptor tree. Priorities and `shed` entries are read at the end.
    pub(super) contents: DomainContents,
    /// The position of `priorities`, and the names if they have no errors.
    priorities: Option<(Position, Option<Vec<Box<str>>>)>,
    /// The entries that name priorities, which may be written in a later file; each with its file.
    prioritize: Vec<UnreadEntry>,
    sheds: Vec<UnreadEntry>,
    /// Positions of the names of rules and entries.
    names: HashMap<Box<str>, Position>,
    branches: Vec<Branch>,
    tops: HashMap<Box<str>, Position>,
    /// Positions of the tree nodes with limits, by rule name.
    nodes: HashMap<Box<str>, Position>,
}

type UnreadEntry = (Arc<str>, YamlNode);

impl Draft {
    pub(super) fn new(name: &str) -> Draft {
        Draft { name: name.into(), ..Draft::default() }
    }

    /// Adds a rule that was read; `None` after errors in it.
    pub(super) fn add_rule(&mut self, node: FileNode<'_>, read: Option<RuleAndCandidate>) {
        let Some((rule, candidate)) = self.add(node, "rule", read) else { return };
        self.contents.rules.push(rule);
        if let Some(candidate) = candidate
            && self.take(candidate.name.clone(), candidate.position.clone(), "rule", node.report)
        {
            self.contents.rules.push(candidate);
        }
    }

    /// Adds an entry of a list that was read; `None` after errors in it.
    pub(super) fn add_listed(&mut self, node: FileNode<'_>, read: Option<ListedEntry>) {
        let listed = self.add(node, "rule or entry", read);
        self.contents.lists.extend(listed);
    }

    /// Reserves the name of an entry, also of one with errors. Returns the entry if there is room for it.
    fn add<T>(&mut self, node: FileNode<'_>, what: &str, read: Option<T>) -> Option<T> {
        let take = |(name, at): (_, FileNode<'_>)| self.take(name, at.position(), what, node.report);
        if !name_of(node, "name").is_none_or(take) {
            return None;
        }
        let added = read.filter(|_| self.names.len() <= RULES_MAX);
        self.broken |= added.is_none();
        added
    }

    pub(super) fn add_priorities(&mut self, file: FileNode<'_>) {
        if let Some(node) = file.get("priorities") {
            let names = meaning::priorities(node);
            match &self.priorities {
                Some((first, _)) => {
                    let help = format!("write them once in a domain; the first are at {first}");
                    node.error("a second `priorities` in the domain", help);
                }
                None => self.priorities = Some((node.position(), names)),
            }
        }
        let unread = |node: FileNode<'_>| (Arc::clone(file.report.source().file()), node.node.clone());
        let (mut prioritize, room) = (file.items("prioritize"), PRIORITIZE_MAX - self.prioritize.len());
        self.prioritize.extend(prioritize.by_ref().take(room).map(unread));
        let (mut sheds, room) = (file.items("shed"), SHEDS_MAX - self.sheds.len());
        self.sheds.extend(sheds.by_ref().take(room).map(unread));
        if let Some(node) = prioritize.next() {
            let message = format!("more than {PRIORITIZE_MAX} entries of `prioritize` in the domain");
            let help = "write lists of values, or send the priority with the request";
            node.error(message, help);
        }
        if let Some(node) = sheds.next() {
            let message = format!("more than {SHEDS_MAX} pools are shed in the domain {}", shown(&self.name));
            let help = "write an entry for each kind of process, not for each process";
            node.error(message, help);
        }
    }

    /// Adds a root node of the descriptor tree with its subtree.
    pub(super) fn graft(&mut self, mut branch: Branch, report: &Report<'_>) {
        if let Some(first) = self.tops.get(&branch.text) {
            // Duplicates within one file are reported by its reader.
            if first.file != branch.position.file {
                let message = format!(
                    "a second descriptor {} at the top of the domain {}",
                    shown(&branch.text),
                    shown(&self.name)
                );
                let help = format!("put both into one file; the first is at {first}");
                report.error(branch.position.span, message, help);
            }
            return;
        }
        self.tops.insert(branch.text.clone(), branch.position.clone());
        let mut name = |path: &[&str], position: &Position| self.name_node(path, position, report);
        branch.name_rules(&mut Vec::new(), &mut name);
        self.branches.push(branch);
    }

    /// Reserves a name for the rule of a node. Two nodes may have the same readable name, as generated names
    /// can collide; the second one then gets a distinct name.
    fn name_node(&mut self, path: &[&str], position: &Position, report: &Report<'_>) -> Box<str> {
        let readable = rule_name(path);
        let is_taken = self.nodes.contains_key(&readable);
        let name = if is_taken { rule_name_apart(path) } else { readable };
        if let Some(first) = self.names.get(&name) {
            let message = format!("a rule named {} stands in the domain {}", shown(&name), shown(&self.name));
            let help = format!("a descriptor is named by its path: give the rule at {first} another name");
            report.error(position.span, message, help);
        } else if self.names.len() + self.nodes.len() == RULES_MAX {
            self.report_too_many(position.span, report);
        }
        self.nodes.insert(name.clone(), position.clone());
        name
    }

    /// Names in `replaces` that no limit has, with their positions.
    pub(super) fn unknown_replaced(&self) -> Vec<&(Box<str>, Position)> {
        let mut limits = Vec::new();
        self.branches.iter().for_each(|branch| branch.limits(&mut limits));
        let names: HashSet<&str> = limits.iter().filter_map(|limit| limit.name.as_deref()).collect();
        let replaced = limits.iter().flat_map(|limit| &limit.replaces);
        replaced.filter(|(name, _)| !names.contains(&**name)).collect()
    }

    /// Reserves a name; reports a duplicate and returns `false`.
    fn take(&mut self, name: Box<str>, position: Position, what: &str, report: &Report<'_>) -> bool {
        if let Some(first) = self.names.get(&name).or(self.nodes.get(&name)) {
            let message =
                format!("a second {what} named {} in the domain {}", shown(&name), shown(&self.name));
            report.error(position.span, message, format!("give it another name; the first is at {first}"));
            return false;
        }
        if self.names.len() + self.nodes.len() == RULES_MAX {
            self.report_too_many(position.span, report);
        }
        self.names.insert(name, position);
        true
    }

    /// Reads the entries that name priorities, once all files of the domain are read. Returns their problems.
    pub(super) fn settle(&mut self, sources: &HashMap<&Arc<str>, &Source>) -> Vec<Problem> {
        let names = match self.priorities.take() {
            Some((_, names)) => names,
            // An unreadable file may have them.
            None => (!self.broken).then(Vec::new),
        };
        let (mut problems, mut prioritize) = (Vec::new(), Vec::new());
        // The first entry that matches every request.
        let mut all: Option<Position> = None;
        // One error suffices, as one line repairs all.
        let mut lacks_names = names.as_ref().is_some_and(Vec::is_empty);
        let known = names.as_deref().filter(|names| !names.is_empty());
        let report_of = |file: &Arc<str>| match sources.get(file) {
            Some(source) => Report::new(source),
            None => unreachable!("an entry is of a file that was read: its requests would not be limited"),
        };
        for (file, node) in std::mem::take(&mut self.prioritize) {
            let report = report_of(&file);
            let node = FileNode::new(&node, &report);
            if std::mem::take(&mut lacks_names) {
                let help = "write `priorities: [MOST IMPORTANT, …, LEAST]` once in the domain";
                node.error("`prioritize` without `priorities`", help);
            }
            let entry = meaning::prioritize(node, known);
            if let Some(first) = &all {
                let help = format!("the entry at {first} has no `match` and takes all: move it to the end");
                node.warn("no request comes this far in `prioritize`", help);
            }
            if let Some(entry) = entry {
                all = all.or_else(|| entry.conditions.is_empty().then(|| entry.position.clone()));
                prioritize.push(entry);
            }
            problems.extend(report.into_problems());
        }
        for (file, node) in std::mem::take(&mut self.sheds) {
            let report = report_of(&file);
            let node = FileNode::new(&node, &report);
            self.contents.sheds.extend(meaning::shed(node, names.as_deref()));
            problems.extend(report.into_problems());
        }
        self.contents.priorities = Priorities { names: names.unwrap_or_default(), prioritize };
        self.broken |= problems.iter().any(Problem::is_error);
        problems
    }

    fn report_too_many(&self, at: Span, report: &Report<'_>) {
        let message = format!("more than {RULES_MAX} rules in the domain {}", shown(&self.name));
        report.error(at, message, "count by an attribute instead of listing its values");
    }

    pub(super) fn into_domain(mut self) -> Domain {
        self.contents.tree = Tree::new(self.branches, &mut self.contents.rules);
        Domain::with(&self.name, self.contents)
    }
}

/// Entries are evaluated one by one for each request until one matches.
const PRIORITIZE_MAX: usize = 256;

/// Each is evaluated four times a second.
const SHEDS_MAX: usize = 64;

/// Read within a few seconds. More rules are usually one per customer, which a `key` replaces.
const RULES_MAX: usize = 100_000;
