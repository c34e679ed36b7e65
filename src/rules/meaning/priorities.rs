//! Reader of `priorities` and `prioritize`. Names are resolved once all files are read.

use std::collections::HashMap;
use std::sync::Arc;

use super::conditions_of;
use crate::rules::de::{self, Mapping};
use crate::rules::file::PrioritizeFields;
use crate::rules::problem::{Problem, shown};
use crate::rules::source::{Report, Source, Span};
use crate::rules::values::Name;
use crate::rules::yaml::{Value, YamlNode};
use crate::rules::{Condition, Position, Priorities, Prioritize};

/// The priorities of one domain read so far.
#[derive(Debug, Default)]
pub(crate) struct ReadPriorities {
    /// The position of `priorities`, and the names if they have no errors.
    declared: Option<(Position, Option<Vec<Box<str>>>)>,
    entries: Vec<PrioritizeEntry>,
}

/// An entry of `prioritize` whose priority is unresolved.
#[derive(Debug)]
struct PrioritizeEntry {
    conditions: Vec<Condition>,
    priority: Box<str>,
    file: Arc<str>,
    at: Span,
    priority_at: Span,
}

impl ReadPriorities {
    pub(crate) fn add(&mut self, file: Mapping<'_>, report: &mut Report<'_>) {
        if let Some(node) = file.get("priorities") {
            let names = names(node, report);
            match &self.declared {
                Some((first, _)) => {
                    let mend = format!("write them once in a domain; the first are at {first}");
                    report.error(node.at, "a second `priorities` in the domain", mend);
                }
                None => self.declared = Some((report.source().position(node.at), names)),
            }
        }
        for node in de::items(file, "prioritize") {
            let known = self.entries.len();
            self.entries.extend(entry(node, report));
            if known == PRIORITIZE_MAX && self.entries.len() > known {
                let message = format!("more than {PRIORITIZE_MAX} entries of `prioritize` in the domain");
                report.error(
                    node.at,
                    message,
                    "write lists of values, or send the priority with the request",
                );
            }
        }
    }

    /// Returns the names, highest priority first. `None` after errors, or if a file is unreadable.
    pub(crate) fn names(&self, is_whole: bool) -> Option<&[Box<str>]> {
        match &self.declared {
            Some((_, names)) => names.as_deref(),
            None => is_whole.then_some(&[]),
        }
    }

    /// Resolves the priorities of all entries once all files of the domain are read. Returns the problems.
    pub(crate) fn settle(
        &self,
        is_whole: bool,
        sources: &HashMap<&Arc<str>, &Source>,
    ) -> (Priorities, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut priorities = Priorities::default();
        let Some(names) = self.names(is_whole) else { return (priorities, problems) };
        let mut all: Option<&PrioritizeEntry> = None;
        for entry in &self.entries {
            let Some(source) = sources.get(&entry.file) else {
                unreachable!("an entry is of a file that was read: requests would have another priority")
            };
            let mut report = Report::new(source);
            if let Some(all) = all {
                let first = source.position(all.at);
                let first = Position { file: Arc::clone(&all.file), ..first };
                let mend = format!("the entry at {first} has no `match` and takes all: move it to the end");
                report.warning(entry.at, "no request comes this far in `prioritize`", mend);
            }
            match names.iter().position(|name| *name == entry.priority) {
                Some(priority) => {
                    let (position, conditions) = (source.position(entry.at), entry.conditions.clone());
                    priorities.prioritize.push(Prioritize { position, conditions, priority });
                }
                None if names.is_empty() => {
                    let mend = "write `priorities: [MOST IMPORTANT, …, LEAST]` once in the domain";
                    report.error(entry.at, "`prioritize` without `priorities`", mend);
                }
                None => {
                    let message = format!("unknown priority {}", shown(&entry.priority));
                    report.error(entry.priority_at, message, nearest(&entry.priority, names));
                }
            }
            problems.extend(report.into_problems());
            if names.is_empty() {
                // One error suffices, as one line repairs all.
                break;
            }
            all = all.or_else(|| entry.conditions.is_empty().then_some(entry));
        }
        priorities.names = names.to_vec();
        (priorities, problems)
    }
}

fn names(node: &YamlNode, report: &mut Report<'_>) -> Option<Vec<Box<str>>> {
    let errors_before = report.errors();
    // The reader of the file reports a value that is no list.
    let Value::List(items) = &node.value else { return None };
    if items.is_empty() {
        let mend = "write `priorities: [MOST IMPORTANT, …, LEAST]`";
        report.error(node.at, "`priorities` has an empty list", mend);
    }
    if items.len() > PRIORITIES_MAX {
        let message = format!("`priorities` has {} names", items.len());
        report.error(node.at, message, format!("write at most {PRIORITIES_MAX}: four are usual"));
        return None;
    }
    let mut names: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        let Some(Name(name)) = de::value(item, "priorities", report) else { continue };
        if names.iter().any(|known| **known == *name) {
            let message = format!("{} is written twice in `priorities`", shown(name));
            report.error(item.at, message, "keep one of the two");
            continue;
        }
        names.push(name.into());
    }
    (report.errors() == errors_before).then_some(names)
}

fn entry(node: &YamlNode, report: &mut Report<'_>) -> Option<PrioritizeEntry> {
    let fields: PrioritizeFields<'_> = de::read(node, report)?;
    let mapping = Mapping(node);
    Some(PrioritizeEntry {
        conditions: conditions_of(mapping, report)?,
        priority: fields.priority.0.into(),
        file: Arc::clone(report.source().file()),
        at: node.at,
        priority_at: mapping.at("priority"),
    })
}

/// Suggests the nearest known name, or lists all of them.
pub(super) fn nearest(name: &str, known: &[Box<str>]) -> String {
    let distance = |known: &str| strsim::osa_distance(&name.to_lowercase(), &known.to_lowercase());
    let nearest = known.iter().min_by_key(|known| distance(known));
    match nearest.filter(|near| distance(near) * 3 <= near.chars().count().max(3)) {
        Some(near) if name.len() <= NAME_BYTES_MAX => format!("did you mean {}?", shown(near)),
        _ => {
            let known: Vec<_> = known.iter().map(|name| shown(name)).collect();
            format!("`priorities` has {}", known.join(", "))
        }
    }
}

/// Shedding iterates over them.
const PRIORITIES_MAX: usize = 64;

/// Entries are evaluated one by one for each request until one matches.
const PRIORITIZE_MAX: usize = 256;

/// A longer text is no misspelt name.
const NAME_BYTES_MAX: usize = 64;
