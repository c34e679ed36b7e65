//! The named items of a domain: all that have a mode, and the keys that operators name. Independent of the
//! state of keys.

use super::Domain;
use crate::rules::shed::ShedPart;
use crate::rules::{Hit, KeyScratch, ListKind, Mode, Position, Rule};

/// An item with a name and a mode.
#[derive(Clone, Copy, Debug)]
pub struct NamedItem<'d> {
    /// The domain.
    pub domain: &'d str,
    /// The name in the domain: `per-user`, `web/workers`.
    pub name: &'d str,
    /// The kind of item.
    pub kind: NamedKind<'d>,
    /// The mode: as written, or of the rules in force the effective one.
    pub mode: Mode,
    /// Its position in the files.
    pub position: &'d Position,
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

/// Why attributes do not identify one key of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotItsKey {
    /// The key has other attributes.
    #[error("its key is made of {asked}, and what is given is {given}: write exactly {}", example(.asked))]
    Others {
        /// The attributes of the key.
        asked: Attributes,
        /// The given attributes.
        given: Attributes,
    },
    /// A value is empty, which the rule never matches.
    #[error("`{0}` is empty, and an empty attribute matches no rule: write {0}=VALUE")]
    Empty(Box<str>),
    /// A descriptor with these entries does not reach the node.
    #[error("these entries do not come to it: write those of its path in their order, {}", path(.0))]
    Path(Vec<Box<str>>),
}

/// Names of attributes in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes(Vec<Box<str>>);

impl Attributes {
    fn of<'a>(names: impl Iterator<Item = &'a str>) -> Attributes {
        Attributes(names.map(Into::into).collect())
    }
}

impl std::fmt::Display for Attributes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        let names: Vec<String> = self.0.iter().map(|name| format!("`{name}`")).collect();
        f.write_str(&names.join(", "))
    }
}

fn example(asked: &Attributes) -> String {
    if asked.0.is_empty() {
        return "no attribute".to_owned();
    }
    asked.0.iter().map(|name| format!("{name}=VALUE")).collect::<Vec<_>>().join(" ")
}

fn path(entries: &[Box<str>]) -> String {
    entries.iter().map(|entry| format!("`{entry}`")).collect::<Vec<_>>().join(", then ")
}

impl Domain {
    /// Returns all named items: rules in file order, those of descriptors, list entries, parts of `shed`.
    pub fn named(&self) -> impl Iterator<Item = NamedItem<'_>> {
        let item = |name, kind, mode, position| NamedItem { domain: self.name(), name, kind, mode, position };
        let rules = (0u32..).zip(&self.rules).map(move |(number, rule)| {
            item(&*rule.name, NamedKind::Rule(number, rule), rule.mode, &rule.position)
        });
        let lists = self.lists.iter();
        let lists = lists
            .map(move |entry| item(&*entry.name, NamedKind::Listed(entry.kind), entry.mode, &entry.position));
        let names = self.shedder_names.chunks(ShedPart::ALL.len());
        let shedders = self.sheds.iter().zip(names).flat_map(move |(shed, names)| {
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
    /// They identify no key of the rule, or more than one.
    pub fn key_named(&self, rule: u32, attributes: &[(&str, &str)]) -> Result<Vec<String>, NotItsKey> {
        if let Some((name, _)) = attributes.iter().find(|(_, value)| value.is_empty()) {
            return Err(NotItsKey::Empty((*name).into()));
        }
        if let Some(path) = self.tree.path(rule) {
            let hit: Option<Hit> = self.tree.find(attributes).filter(|hit| hit.rule == rule);
            let hit = hit.ok_or_else(|| NotItsKey::Path(path.into_iter().map(Into::into).collect()))?;
            return Ok(self.tree.key_values(hit, attributes).map(str::to_owned).collect());
        }
        let key = self.rules.get(rule as usize).map_or(&[][..], |rule| &rule.key);
        let value = |name: &str| attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let values: Vec<&str> = key.iter().filter_map(|part| value(&part.attribute)).collect();
        if values.len() != key.len() || attributes.len() != key.len() {
            let asked = Attributes::of(key.iter().map(|part| &*part.attribute));
            return Err(NotItsKey::Others {
                asked,
                given: Attributes::of(attributes.iter().map(|(name, _)| *name)),
            });
        }
        let mut scratch = KeyScratch::default();
        scratch.fill(key.iter().map(|part| part.transform).zip(values));
        Ok(scratch.values().map(str::to_owned).collect())
    }
}
