//! A node of a descriptor tree as read, with its subtree, and the names of rules.

use std::sync::Arc;

use crate::limit::fixed_window::WindowPeriod;
use crate::rules::source::Span;
use crate::rules::{FleetSettings, Position};

#[derive(Debug)]
pub(in crate::rules) struct Branch {
    pub(in crate::rules) key: Box<str>,
    /// `key_value`, or the key alone.
    pub(in crate::rules) text: Box<str>,
    /// The position of its key.
    pub(in crate::rules) position: Position,
    /// The span of its key.
    pub(in crate::rules) at: Span,
    /// Whether all values that it matches as a pattern share one state.
    pub(in crate::rules) share: bool,
    pub(in crate::rules) limit: Option<NodeLimit>,
    /// Its children in file order.
    pub(in crate::rules) branches: Vec<Branch>,
}

#[derive(Debug)]
pub(in crate::rules) struct NodeLimit {
    pub(in crate::rules) rule: Box<str>,
    /// Requests per window; `None` is unlimited.
    pub(in crate::rules) amount: Option<RequestsPerUnit>,
    /// Whether it refuses nothing (`shadow_mode`).
    pub(in crate::rules) shadow: bool,
    /// Whether it refuses nothing and marks requests over it (`quota_mode`).
    pub(in crate::rules) quota: bool,
    /// The fleet settings; `None` with `scope: host`.
    pub(in crate::rules) fleet: Option<FleetSettings>,
    /// The name by which other limits replace it.
    pub(in crate::rules) name: Option<Box<str>>,
    /// Names of the limits that it replaces, with spans.
    pub(in crate::rules) replaces: Vec<(Box<str>, Span)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) struct RequestsPerUnit {
    /// Requests; 0 refuses all.
    pub(in crate::rules) count: u32,
    /// The length of a window in seconds.
    pub(in crate::rules) seconds: u32,
}

impl RequestsPerUnit {
    pub(super) fn period(self) -> WindowPeriod {
        WindowPeriod::Nanos(u64::from(self.seconds) * 1_000_000_000)
    }
}

impl Branch {
    /// Names the rules of all limits in the subtree, parents before children. `name` gets the texts on the
    /// path, the position and the span.
    pub(in crate::rules) fn name_rules<'b>(
        &'b mut self,
        path: &mut Vec<&'b str>,
        name: &mut impl FnMut(&[&str], &Position, Span) -> Box<str>,
    ) {
        path.push(&self.text);
        if let Some(limit) = &mut self.limit {
            limit.rule = name(path, &self.position, self.at);
        }
        self.branches.iter_mut().for_each(|branch| branch.name_rules(path, name));
        path.pop();
    }

    /// Collects all limits of the subtree, with their files.
    pub(in crate::rules) fn limits<'b>(&'b self, limits: &mut Vec<(&'b Arc<str>, &'b NodeLimit)>) {
        limits.extend(self.limit.iter().map(|limit| (&self.position.file, limit)));
        self.branches.iter().for_each(|branch| branch.limits(limits));
    }

    /// Returns the key attribute if the node does not fix its value: each value has a state of its own.
    pub(super) fn counted(&self) -> Option<Box<str>> {
        let is_bare = self.text == self.key;
        let is_pattern = self.text.contains('*');
        (is_bare && !is_pattern || is_pattern && !self.share).then(|| self.key.clone())
    }
}

/// Names a node's rule: the texts on its path joined by dots, with `_` for characters that names exclude.
pub(in crate::rules) fn rule_name(path: &[&str]) -> Box<str> {
    let name = readable(path);
    if name.len() > RULE_BYTES_MAX { ended_by_digest(name, path) } else { name.into() }
}

/// Returns a unique name for a rule whose readable name is taken, with a digest of the path.
pub(in crate::rules) fn rule_name_apart(path: &[&str]) -> Box<str> {
    ended_by_digest(readable(path), path)
}

/// Shortens a name if needed and appends a digest of the path.
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

/// 32-bit fold of FNV-1a. Names are used in metrics, so the digest must not change with a library.
fn digest(path: &[&str]) -> u32 {
    let bytes = path.iter().flat_map(|text| text.bytes().chain([b'\n']));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::try_from((hash >> 32) ^ (hash & u64::from(u32::MAX))).unwrap_or_default()
}

/// The longest rule name in a reply.
const RULE_BYTES_MAX: usize = 255;

/// A tilde and eight digits.
const DIGEST_BYTES: usize = 9;
