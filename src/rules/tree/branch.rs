//! A node of a descriptor tree as it was read, with what grows on it, and the name of its rule.

use std::sync::Arc;

use crate::limit::fixed_window::Period;
use crate::rules::source::Place;
use crate::rules::{FleetTerms, Position};

/// A node as it was read.
#[derive(Debug)]
pub(in crate::rules) struct Branch {
    /// Its key.
    pub(in crate::rules) key: Box<str>,
    /// `key_value`, or the key alone.
    pub(in crate::rules) text: Box<str>,
    /// Where its key stands.
    pub(in crate::rules) position: Position,
    /// The same within its file.
    pub(in crate::rules) at: Place,
    /// All that it matches as a pattern count together.
    pub(in crate::rules) share: bool,
    /// Its limit, if it has one.
    pub(in crate::rules) limit: Option<NodeLimit>,
    /// Its children in file order.
    pub(in crate::rules) branches: Vec<Branch>,
}

/// The limit of a node.
#[derive(Debug)]
pub(in crate::rules) struct NodeLimit {
    /// The name of its rule.
    pub(in crate::rules) rule: Box<str>,
    /// `None`: unlimited.
    pub(in crate::rules) amount: Option<Amount>,
    /// It refuses nothing.
    pub(in crate::rules) shadow: bool,
    /// It refuses nothing, and a request over it is told so.
    pub(in crate::rules) quota: bool,
    /// How hosts share it; `None`: each counts for itself.
    pub(in crate::rules) fleet: Option<FleetTerms>,
    /// By what name others replace it.
    pub(in crate::rules) name: Option<Box<str>>,
    /// The names of what it replaces, and where each stands.
    pub(in crate::rules) replaces: Vec<(Box<str>, Place)>,
}

/// So many requests in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) struct Amount {
    /// Requests; 0 refuses all.
    pub(in crate::rules) count: u32,
    /// The length of a window.
    pub(in crate::rules) seconds: u32,
}

impl Amount {
    pub(super) fn period(self) -> Period {
        Period::Nanos(u64::from(self.seconds) * 1_000_000_000)
    }
}

impl Branch {
    /// Names the rules of its limit and of all limits on it, parents before children, given the texts on the path of
    /// each and where it stands.
    pub(in crate::rules) fn name_rules<'b>(
        &'b mut self,
        path: &mut Vec<&'b str>,
        name: &mut impl FnMut(&[&str], &Position, Place) -> Box<str>,
    ) {
        path.push(&self.text);
        if let Some(limit) = &mut self.limit {
            limit.rule = name(path, &self.position, self.at);
        }
        self.branches.iter_mut().for_each(|branch| branch.name_rules(path, name));
        path.pop();
    }

    /// Its limit and all on it, each with the file that it stands in.
    pub(in crate::rules) fn limits<'b>(&'b self, limits: &mut Vec<(&'b Arc<str>, &'b NodeLimit)>) {
        limits.extend(self.limit.iter().map(|limit| (&self.position.file, limit)));
        self.branches.iter().for_each(|branch| branch.limits(limits));
    }

    /// The attribute by whose values it counts apart, if it does: the value is not settled by the node.
    pub(super) fn counted(&self) -> Option<Box<str>> {
        let is_bare = self.text == self.key;
        let is_pattern = self.text.contains('*');
        (is_bare && !is_pattern || is_pattern && !self.share).then(|| self.key.clone())
    }
}

/// The name of a node's rule: the texts of the nodes on its path, joined by dots, without the characters that a rule
/// name must not contain.
pub(in crate::rules) fn rule_name(path: &[&str]) -> Box<str> {
    let name = readable(path);
    if name.len() > RULE_BYTES_MAX { ended_by_digest(name, path) } else { name.into() }
}

/// The name of a node's rule where the readable one is too long or another has it: ended by a digest of the path.
pub(in crate::rules) fn rule_name_apart(path: &[&str]) -> Box<str> {
    ended_by_digest(readable(path), path)
}

/// The name cut to the length of a rule name, ended by a digest of the path.
fn ended_by_digest(mut name: String, path: &[&str]) -> Box<str> {
    let mut end = name.len().min(RULE_BYTES_MAX - DIGEST_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    format!("{name}~{:08x}", digest(path)).into()
}

fn readable(path: &[&str]) -> String {
    let forbidden = |character: char| character.is_control() || matches!(character, ':' | '/');
    path.join(".").replace(forbidden, "_")
}

/// FNV-1a, folded: names stand in metrics and must not change with a library.
fn digest(path: &[&str]) -> u32 {
    let bytes = path.iter().flat_map(|text| text.bytes().chain([b'\n']));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::try_from((hash >> 32) ^ (hash & u64::from(u32::MAX))).unwrap_or_default()
}

/// What a reply carries of a rule's name.
const RULE_BYTES_MAX: usize = 255;

/// A tilde and eight digits.
const DIGEST_BYTES: usize = 9;
