//! What the rules of one domain name: the words that operators wrote. Who is told them learns nothing of a caller but
//! that the rules know it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::rules::{Condition, Domain, Glob, KeyPart, Network, Pattern, Rule, Transform};

/// What the rules of one domain name.
#[derive(Debug, Default)]
pub(super) struct Words {
    attributes: HashMap<Box<str>, OfAttribute>,
    /// Texts of nodes of the descriptor tree: `key_value`.
    nodes: HashSet<Box<str>>,
    /// Those with stars.
    node_globs: Vec<Glob>,
    priorities: HashSet<Box<str>>,
}

/// What they name of one attribute.
#[derive(Debug, Default)]
pub(super) struct OfAttribute {
    exact: HashSet<Box<str>>,
    globs: Vec<Pattern>,
    /// Values of tables, as they are counted by.
    columns: Vec<(Transform, HashSet<Box<str>>)>,
    /// What its addresses are looked at by.
    pub(super) networks: Vec<Network>,
    /// Whether some rule takes its values for addresses.
    pub(super) is_address: bool,
}

impl Words {
    pub(super) fn of(domain: &Domain) -> Words {
        let mut words = Words::default();
        for rule in domain.rules() {
            words.add_conditions(&rule.conditions);
            words.add_key(rule);
        }
        domain.lists().iter().for_each(|listed| words.add_conditions(&listed.conditions));
        domain.prioritize().iter().for_each(|entry| words.add_conditions(&entry.conditions));
        words.priorities.extend(domain.priorities().iter().cloned());
        for text in domain.tree().texts() {
            if text.contains('*') {
                words.node_globs.push(Glob::without_escapes(text));
            }
            // A request may carry the very text of a pattern.
            words.nodes.insert(text.into());
        }
        words
    }

    /// What they name of an attribute, if they name anything.
    pub(super) fn of_attribute(&self, attribute: &str) -> Option<&OfAttribute> {
        self.attributes.get(attribute)
    }

    /// Whether a value is one of their words.
    pub(super) fn name(&self, attribute: &str, value: &str) -> bool {
        self.of_attribute(attribute).is_some_and(|words| words.name(value))
            || !self.nodes.is_empty() && self.nodes.contains(&*node_text(attribute, value))
    }

    /// Whether they know a priority.
    pub(super) fn know_priority(&self, name: &str) -> bool {
        self.priorities.contains(name)
    }

    /// Whether each of their patterns that fits one of two values fits the other.
    pub(super) fn see_the_same(&self, attribute: &str, one: &str, other: &str) -> bool {
        let of_attribute = || {
            let globs = self.of_attribute(attribute).into_iter().flat_map(|words| &words.globs);
            { globs }.all(|glob| glob.holds(one) == glob.holds(other))
        };
        let of_nodes = || {
            let (one, other) = (node_text(attribute, one), node_text(attribute, other));
            self.node_globs.iter().all(|glob| glob.matches(&one) == glob.matches(&other))
        };
        of_attribute() && (self.node_globs.is_empty() || of_nodes())
    }

    /// Which bytes of a value are pieces of their patterns.
    pub(super) fn pieces_in(&self, attribute: &str, value: &str) -> Vec<bool> {
        let mut pieces = vec![false; value.len()];
        for pattern in self.of_attribute(attribute).into_iter().flat_map(|words| &words.globs) {
            match pattern {
                Pattern::Glob(glob) => mark(&mut pieces, glob, value, 0),
                // Letters beyond ASCII change their length with their case: they are not kept.
                Pattern::AnyCase(glob) => mark(&mut pieces, glob, &value.to_ascii_lowercase(), 0),
                _ => {}
            }
        }
        if !self.node_globs.is_empty() {
            let (text, start) = (node_text(attribute, value), attribute.len() + 1);
            self.node_globs.iter().for_each(|glob| mark(&mut pieces, glob, &text, start));
        }
        pieces
    }

    fn add_conditions(&mut self, conditions: &[Condition]) {
        for Condition { attribute, any_of, .. } in conditions {
            let words = self.attributes.entry(attribute.clone()).or_default();
            any_of.iter().for_each(|pattern| words.add(pattern));
        }
    }

    fn add_key(&mut self, rule: &Rule) {
        for part in rule.key.iter().filter(|part| part.transform.ipv6_prefix.is_some()) {
            self.attributes.entry(part.attribute.clone()).or_default().is_address = true;
        }
        let Some(overrides) = &rule.overrides else { return };
        overrides.list.iter().for_each(|(conditions, _)| self.add_conditions(conditions));
        let mut columns = vec![HashSet::new(); rule.key.len()];
        overrides.rows.each_value(columns.len(), &mut |column, value| {
            if let Some(values) = columns.get_mut(column) {
                values.insert(value.into());
            }
        });
        for (part, values) in rule.key.iter().zip(columns).filter(|(_, values)| !values.is_empty()) {
            self.attributes.entry(part.attribute.clone()).or_default().add_column(part, values);
        }
    }
}

impl OfAttribute {
    fn add(&mut self, pattern: &Pattern) {
        match pattern {
            Pattern::Exact(text) => {
                self.networks.extend(text.parse().ok().and_then(network_of));
                self.exact.insert(text.clone());
            }
            Pattern::Glob(_) | Pattern::AnyCase(_) => self.globs.push(pattern.clone()),
            Pattern::Network(network) => {
                self.networks.push(*network);
                self.is_address = true;
            }
            Pattern::Not(patterns) => patterns.iter().for_each(|pattern| self.add(pattern)),
            Pattern::Present => {}
        }
    }

    fn add_column(&mut self, part: &KeyPart, values: HashSet<Box<str>>) {
        let Some(bits) = part.transform.ipv6_prefix else {
            self.columns.push((part.transform, values));
            return;
        };
        // A row stands for all addresses that share these bits: they are kept, and no others.
        let network = |value: &str| match value.parse().ok()? {
            IpAddr::V6(address) => Network::new(address.into(), bits),
            address => network_of(address),
        };
        self.networks.extend(values.iter().filter_map(|value| network(value)));
        self.columns.push((Transform::default(), values));
    }

    fn name(&self, value: &str) -> bool {
        let counted = |transform: &Transform| {
            let mut text = String::new();
            transform.push(value, &mut text);
            text
        };
        self.exact.contains(value)
            || self.columns.iter().any(|(transform, values)| values.contains(&*counted(transform)))
    }
}

/// The network of one address.
fn network_of(address: IpAddr) -> Option<Network> {
    let address = address.to_canonical();
    Network::new(address, if address.is_ipv4() { 32 } else { 128 })
}

/// What a node of a descriptor tree is compared with.
fn node_text(attribute: &str, value: &str) -> String {
    format!("{attribute}_{value}")
}

/// Marks what a pattern's pieces are in a text whose bytes from `start` on are those of the value.
fn mark(kept: &mut [bool], glob: &Glob, text: &str, start: usize) {
    let mut keep = |from: usize, length: usize| {
        let (from, to) = (from.max(start), (from + length).max(start));
        kept.get_mut(from - start..to - start).into_iter().for_each(|bytes| bytes.fill(true));
    };
    match glob.pieces() {
        [first, middle @ .., last] => {
            if text.starts_with(&**first) {
                keep(0, first.len());
            }
            if text.ends_with(&**last) {
                keep(text.len() - last.len(), last.len());
            }
            for piece in middle.iter().filter(|piece| !piece.is_empty()) {
                text.match_indices(&**piece).for_each(|(at, piece)| keep(at, piece.len()));
            }
        }
        [whole] if **whole == *text => keep(0, text.len()),
        _ => {}
    }
}
