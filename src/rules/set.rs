//! A domain: its rules and lists, with their index.

use super::index::Index;
use super::near::value;
use super::shed::{Shed, ShedPart};
use super::{
    Condition, Hit, KeyPart, KeyScratch, ListKind, ListedEntry, Mode, Pattern, Position, Priorities,
    Prioritize, Rule, Selection, Tree,
};

/// One domain: its rules and lists in file order.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    contents: DomainContents,
    /// The names of the parts of all `shed` entries.
    shedder_names: Vec<Box<str>>,
    pub(super) index: Index,
}

/// The contents of a domain.
#[derive(Debug, Default)]
pub struct DomainContents {
    /// The rules, numbered by index; those of the descriptor tree last.
    pub rules: Vec<Rule>,
    /// The entries of `exempt` and `deny`.
    pub lists: Vec<ListedEntry>,
    /// The priorities and their assignment.
    pub priorities: Priorities,
    /// The `shed` entries.
    pub sheds: Vec<Shed>,
    /// The descriptor tree.
    pub tree: Tree,
}

/// The first reason why a rule does not match a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch<'d> {
    /// Its mode is `disabled`.
    Disabled,
    /// The request lacks an attribute, or has an empty one.
    Absent {
        /// The attribute.
        attribute: &'d str,
        /// The line of the condition that requires it; 0 for a part of the key.
        line: u32,
    },
    /// The value of the attribute does not match this condition.
    Condition(&'d Condition),
}

impl Domain {
    /// Makes a domain of rules, numbered by index.
    pub fn new(name: &str, rules: Vec<Rule>) -> Domain {
        Domain::with(name, DomainContents { rules, ..DomainContents::default() })
    }

    /// Makes a domain.
    pub fn with(name: &str, mut contents: DomainContents) -> Domain {
        let DomainContents { rules, lists, priorities, sheds, tree } = &mut contents;
        lists.sort_by_key(|listed| listed.kind);
        // The index leaves out nodes of the tree, which are found through the tree and not by attributes.
        let (indexed, _) = rules.split_at(rules.len() - tree.rules_len());
        let index = Index::new(indexed, rules.len(), lists, priorities);
        let names = |shed: &Shed| ShedPart::ALL.map(|part| shed.rule_name(part).into_boxed_str());
        let shedder_names = sheds.iter().flat_map(names).collect();
        Domain { name: name.into(), contents, shedder_names, index }
    }

    /// The domain's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rules in file order, then those of the descriptor tree.
    pub fn rules(&self) -> &[Rule] {
        &self.contents.rules
    }

    /// Returns all conditions of rules, their overrides, list entries and priorities.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let overrides = self.rules().iter().filter_map(|rule| rule.overrides.as_deref());
        let of_overrides = overrides.flat_map(|own| own.list.iter().map(|(conditions, _)| conditions));
        let rules = self.rules().iter().map(|rule| &rule.conditions);
        let lists = self.lists().iter().map(|listed| &listed.conditions);
        let priorities = self.prioritize().iter().map(|entry| &entry.conditions);
        rules.chain(of_overrides).chain(lists).chain(priorities).flatten()
    }

    /// Whether rules use the value of an attribute other than as a plain part of a key.
    pub(crate) fn looks_at(&self, attribute: &str) -> bool {
        let looks = |condition: &Condition| {
            *condition.attribute == *attribute && !condition.any_of.iter().all(Pattern::is_any)
        };
        let in_key = |rule: &Rule| {
            let looks = |part: &KeyPart| !part.is_plain() || rule.overrides.is_some();
            rule.key.iter().any(|part| *part.attribute == *attribute && looks(part))
        };
        let in_tree = |text: &str| text.strip_prefix(attribute).is_some_and(|value| value.starts_with('_'));
        self.conditions().any(looks)
            || self.rules().iter().any(in_key)
            || self.contents.tree.texts().any(in_tree)
    }

    /// The descriptor tree.
    pub fn tree(&self) -> &Tree {
        &self.contents.tree
    }

    /// Returns the entries of `exempt` in file order, then those of `deny`.
    pub fn lists(&self) -> &[ListedEntry] {
        &self.contents.lists
    }

    /// Returns the list entry of a number. Entries are numbered after the rules.
    pub fn listed(&self, number: u32) -> Option<&ListedEntry> {
        self.contents.lists.get((number as usize).checked_sub(self.contents.rules.len())?)
    }

    /// Returns the `shed` entries in file order.
    pub fn sheds(&self) -> &[Shed] {
        &self.contents.sheds
    }

    /// Returns the number of a part of an entry of [`Domain::sheds`]. Parts are numbered after list entries.
    pub(crate) fn shedder(&self, entry: usize, part: ShedPart) -> u32 {
        let number = self.contents.rules.len()
            + self.contents.lists.len()
            + entry * ShedPart::ALL.len()
            + part as usize;
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Returns the name of a shed controller by its number, such as `web/workers`.
    pub(crate) fn shedder_name(&self, number: u32) -> Option<&str> {
        let behind = (number as usize).checked_sub(self.contents.rules.len() + self.contents.lists.len())?;
        self.shedder_names.get(behind).map(|name| &**name)
    }

    /// Returns the names of the priorities from the highest to the lowest.
    pub fn priorities(&self) -> &[Box<str>] {
        &self.contents.priorities.names
    }

    /// Returns the entries of `prioritize` in file order.
    pub(crate) fn prioritize(&self) -> &[Prioritize] {
        &self.contents.priorities.prioritize
    }

    /// Returns the priority of a request; see [`Domain::priority_index`].
    pub fn priority<'d>(&'d self, requested: Option<&str>, selection: &Selection<'_>) -> Option<&'d str> {
        let index = self.priority_index(requested, selection)?;
        self.contents.priorities.names.get(index).map(|name| &**name)
    }

    /// Whether the rule's key has no transformations.
    pub fn key_is_plain(&self, rule: u32) -> bool {
        self.contents.rules.get(rule as usize).is_none_or(|rule| rule.key.iter().all(KeyPart::is_plain))
    }

    /// Returns the transformed values of a matching rule's key, in order. A used scratch does not allocate.
    pub fn transformed_key<'s>(
        &self,
        rule: u32,
        selection: &Selection<'_>,
        scratch: &'s mut KeyScratch,
    ) -> &'s KeyScratch {
        let key = self.contents.rules.get(rule as usize).map_or(&[][..], |rule| &rule.key);
        scratch.fill(key.iter().map(|part| part.transform).zip(self.key_values(rule, selection)));
        scratch
    }

    /// Returns the allowance number of a matching rule for a request: that of the row of its transformed key,
    /// else that of the first override that matches, else 0.
    pub fn allowance_of<'v>(
        &self,
        rule: u32,
        selection: &Selection<'_>,
        key: impl Iterator<Item = &'v str> + Clone,
    ) -> u32 {
        let overrides = self.contents.rules.get(rule as usize).and_then(|rule| rule.overrides.as_deref());
        let Some(overrides) = overrides else { return 0 };
        overrides.rows.number_of(key).or_else(|| self.override_of(rule, selection)).unwrap_or(0)
    }

    /// Returns the first reason why a rule or list entry of this mode does not match these attributes; `None` if it does,
    /// or if the number is unknown. Tests each condition, so it is for diagnostics only.
    pub fn why_not(&self, number: u32, mode: Mode, attributes: &[(&str, &str)]) -> Option<Mismatch<'_>> {
        let (conditions, key) = self.asks(number)?;
        if mode == Mode::Disabled {
            return Some(Mismatch::Disabled);
        }
        let value = |name: &str| value(attributes, name);
        let failing = conditions.iter().find(|condition| !condition.holds(value(&condition.attribute)));
        if let Some(condition) = failing {
            return Some(match value(&condition.attribute) {
                None => Mismatch::Absent { attribute: &condition.attribute, line: condition.line },
                Some(_) => Mismatch::Condition(condition),
            });
        }
        let missing = key.iter().find(|part| value(&part.attribute).is_none());
        missing.map(|part| Mismatch::Absent { attribute: &part.attribute, line: 0 })
    }

    pub(super) fn asks(&self, number: u32) -> Option<(&[Condition], &[KeyPart])> {
        match self.contents.rules.get(number as usize) {
            Some(rule) => Some((&rule.conditions, &rule.key)),
            None => self.listed(number).map(|listed| (&*listed.conditions, &[][..])),
        }
    }
}

/// An item with a name and a mode.
#[derive(Clone, Copy, Debug)]
pub struct NamedItem<'d> {
    /// The domain.
    pub domain: &'d str,
    /// The name in the domain: `per-user`, `web/workers`.
    pub name: &'d str,
    pub(crate) kind: NamedKind<'d>,
    /// The mode: as written, or of the rules in force the effective one.
    pub mode: Mode,
    pub(crate) position: &'d Position,
}

/// The kind of a named item.
#[derive(Clone, Copy, Debug)]
pub enum NamedKind<'d> {
    /// A rule and its number: of `limits`, `concurrency` or a descriptor.
    Rule(u32, &'d Rule),
    /// An entry of `exempt` or `deny`.
    Listed(ListKind),
    /// A part of an entry of `shed`.
    Shedder,
}

/// Says that a key is made of other attributes, and what to write.
fn other_attributes(expected: &[KeyPart], given: &[(&str, &str)]) -> String {
    let list = |names: &mut dyn Iterator<Item = &str>| {
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    let example: Vec<String> = expected.iter().map(|part| format!("{}=VALUE", part.attribute)).collect();
    let example = if example.is_empty() { "no attribute".to_owned() } else { example.join(" ") };
    let expected = list(&mut expected.iter().map(|part| &*part.attribute));
    let given = list(&mut given.iter().map(|(name, _)| *name));
    format!("its key is made of {expected}, not of {given}: write exactly {example}")
}

impl Domain {
    /// Returns all named items: rules in file order, those of descriptors, list entries, parts of `shed`.
    pub(crate) fn named(&self) -> impl Iterator<Item = NamedItem<'_>> {
        let item = |name, kind, mode, position| NamedItem { domain: self.name(), name, kind, mode, position };
        let rules = (0u32..).zip(&self.contents.rules).map(move |(number, rule)| {
            item(&*rule.name, NamedKind::Rule(number, rule), rule.mode, &rule.position)
        });
        let lists = self.contents.lists.iter();
        let lists = lists
            .map(move |entry| item(&*entry.name, NamedKind::Listed(entry.kind), entry.mode, &entry.position));
        let names = self.shedder_names.chunks(ShedPart::ALL.len());
        let shedders = self.contents.sheds.iter().zip(names).flat_map(move |(shed, names)| {
            let parts = ShedPart::ALL.into_iter().zip(names);
            parts.filter_map(move |(part, name)| {
                Some(item(&**name, NamedKind::Shedder, shed.mode(part)?, &shed.position))
            })
        });
        rules.chain(lists).chain(shedders)
    }

    /// Returns the key values of the one key that these attributes identify, transformed like those of a
    /// request. Their order matters for descriptors only.
    ///
    /// # Errors
    /// Why they identify no key of the rule, or more than one, and what to write.
    pub(crate) fn key_named(&self, rule: u32, attributes: &[(&str, &str)]) -> Result<Vec<String>, String> {
        if let Some((name, _)) = attributes.iter().find(|(_, value)| value.is_empty()) {
            let why = "is empty, and an empty attribute matches no rule";
            return Err(format!("`{name}` {why}: write {name}=VALUE"));
        }
        if let Some(path) = self.contents.tree.path(rule) {
            let hit: Option<Hit> = self.contents.tree.find(attributes).filter(|hit| hit.rule == rule);
            let hit = hit.ok_or_else(|| {
                let path = path.iter().map(|entry| format!("`{entry}`")).collect::<Vec<_>>().join(", then ");
                format!("these entries do not come to it: write those of its path in their order, {path}")
            })?;
            return Ok(self.contents.tree.key_values(hit, attributes).map(str::to_owned).collect());
        }
        let key = self.contents.rules.get(rule as usize).map_or(&[][..], |rule| &rule.key);
        let value = |name: &str| attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let values: Vec<&str> = key.iter().filter_map(|part| value(&part.attribute)).collect();
        if values.len() != key.len() || attributes.len() != key.len() {
            return Err(other_attributes(key, attributes));
        }
        let mut scratch = KeyScratch::default();
        scratch.fill(key.iter().map(|part| part.transform).zip(values));
        Ok(scratch.values().map(str::to_owned).collect())
    }
}
