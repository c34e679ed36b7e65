//! The descriptor tree of a domain: finds the node that limits a descriptor. Independent of state and time.
//!
//! It follows envoyproxy/ratelimit (`src/config/config_impl.go`): each entry in turn selects a node named
//! `key_value`, else the first pattern in file order that matches `key_value`, else a node named by the key
//! alone. There is no backtracking to the subtrees that such a node hides.

use arrayvec::{ArrayString, ArrayVec};
use hashbrown::HashTable;

use super::affixes::Affixes;
use super::names::{RuleNames, hash};
use super::{Glob, KeyPart, Position, Rule};

/// The descriptor tree of a domain.
#[derive(Debug, Default)]
pub struct Tree {
    root: TreeLevel,
    nodes: Vec<TreeNode>,
    limits: Vec<Limiting>,
    /// The number in the domain of the first rule of a node.
    first_rule: u32,
    /// The largest number of entries on a path.
    depth: usize,
}

/// One entry of the path of a descriptor.
#[derive(Debug)]
struct TreeNode {
    /// `key_value`, or the key alone; may contain stars.
    text: Box<str>,
    /// Whether all values that it matches as a pattern share one state.
    share: bool,
    below: TreeLevel,
    limit: Option<u32>,
}

#[derive(Debug)]
struct Limiting {
    /// The nodes from the root to this one, inclusive.
    path: Box<[u32]>,
    unlimited: bool,
    /// The number of its name, by which other limits replace it.
    name: Option<u32>,
    /// Names of the limits that it replaces.
    replaces: Box<[u32]>,
}

/// The node that limits a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The number of its rule in the domain.
    pub rule: u32,
    /// A bit for each entry that counts by the pattern it matched instead of its own value.
    shared: u32,
}

impl Tree {
    /// Makes a tree, and appends the rules of its nodes to those of the domain. Of two equal nodes on one level the first
    /// stays; the reader never returns duplicates.
    pub(super) fn new(branches: Vec<Branch>, rules: &mut Vec<Rule>) -> Tree {
        let mut tree = Tree { first_rule: u32::try_from(rules.len()).unwrap_or(u32::MAX), ..Tree::default() };
        tree.root = tree.grow(branches, &mut Vec::new(), &mut RuleNames::default(), rules);
        tree
    }

    /// Whether there are no limits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Returns the node that limits a descriptor. It is exactly as deep as the descriptor is long; a node
    /// without a limit also ends the search.
    pub fn find(&self, descriptor: &[(&str, &str)]) -> Option<Hit> {
        if descriptor.len() > self.depth {
            return None;
        }
        let (mut level, mut limit, mut shared) = (&self.root, None, 0);
        for (index, (key, value)) in (0u32..).zip(descriptor) {
            let (node, by) = level.child(&self.nodes, key, value)?;
            if by == MatchedBy::Pattern && node.share {
                shared |= 1u32.checked_shl(index).unwrap_or_default();
            }
            (level, limit) = (&node.below, node.limit);
        }
        Some(Hit { rule: self.first_rule + limit?, shared })
    }

    /// Returns the text of every node: `key_value`, or the key alone; may contain stars.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| &*node.text)
    }

    /// Returns the number of nodes, including those without a limit.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the texts of the nodes from the root to the node of a rule: `key_value`, or the key alone.
    /// `None` if the rule is not from this tree.
    pub(crate) fn path(&self, rule: u32) -> Option<Vec<&str>> {
        let path = &self.limiting(rule)?.path;
        Some(path.iter().map(|node| &*node_at(&self.nodes, *node).text).collect())
    }

    /// Returns the key values of a hit: for each entry of the descriptor that it was found for, the key and
    /// the value, or the pattern instead of a value if all its matches share a state.
    #[allow(clippy::indexing_slicing, reason = "it was found: counted apart, each value would have it all")]
    pub fn key_values<'s, 'a: 's>(
        &'s self,
        hit: Hit,
        descriptor: &'s [(&'a str, &'a str)],
    ) -> impl ExactSizeIterator<Item = &'s str> + 's {
        let path = &self.limits[(hit.rule - self.first_rule) as usize].path;
        (0..2 * descriptor.len()).map(move |at| {
            let index = at / 2;
            let (key, value) = descriptor[index];
            match (at % 2, hit.shared >> index & 1) {
                (0, _) => key,
                (_, 0) => value,
                _ => node_at(&self.nodes, path[index]).value_behind(key),
            }
        })
    }

    /// Returns the number of nodes with a rule.
    pub(super) fn rules_len(&self) -> usize {
        self.limits.len()
    }

    fn limiting(&self, rule: u32) -> Option<&Limiting> {
        self.limits.get(rule.checked_sub(self.first_rule)? as usize)
    }

    fn grow(
        &mut self,
        branches: Vec<Branch>,
        path: &mut Vec<(u32, Option<Box<str>>)>,
        names: &mut RuleNames,
        rules: &mut Vec<Rule>,
    ) -> TreeLevel {
        let mut numbers = Vec::with_capacity(branches.len());
        for branch in branches {
            let number = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
            path.push((number, branch.counted()));
            self.depth = self.depth.max(path.len());
            let limit = branch.limit.map(|limit| {
                let own = u32::try_from(self.limits.len()).unwrap_or(u32::MAX);
                self.limits.push(Limiting {
                    path: path.iter().map(|(number, _)| *number).collect(),
                    unlimited: limit.rule.limit.quota().is_none(),
                    name: limit.name.as_deref().map(|name| number_of(name, names)),
                    replaces: limit.replaces.iter().map(|(name, _)| number_of(name, names)).collect(),
                });
                let key = path.iter().filter_map(|(_, counted)| counted.as_deref()).map(KeyPart::plain);
                rules.push(Rule { key: key.collect(), ..limit.rule });
                own
            });
            let node =
                TreeNode { text: branch.text, share: branch.share, below: TreeLevel::default(), limit };
            self.nodes.push(node);
            // A parent precedes its children, also in the order of the rules.
            let below = self.grow(branch.branches, path, names, rules);
            #[allow(clippy::indexing_slicing, reason = "it is there: what is below would be lost")]
            {
                self.nodes[number as usize].below = below;
            }
            numbers.push(number);
            path.pop();
        }
        TreeLevel::new(&self.nodes, &numbers)
    }
}

impl TreeNode {
    /// Returns the part of a pattern that replaces the value of this key; all of it if a star is in the key.
    fn value_behind(&self, key: &str) -> &str {
        self.text.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(&self.text)
    }
}

#[inline]
#[allow(clippy::indexing_slicing, reason = "the numbers are those of nodes: a lost one would limit nothing")]
fn node_at(nodes: &[TreeNode], number: u32) -> &TreeNode {
    &nodes[number as usize]
}

fn number_of(name: &str, names: &mut RuleNames) -> u32 {
    u32::try_from(names.intern(name)).unwrap_or(u32::MAX)
}

/// The children of one node: found by text, then by the first matching pattern, looked up by prefix.
#[derive(Debug, Default)]
struct TreeLevel {
    /// All children, including patterns, as a request may carry the text of a pattern.
    exact: HashTable<u32>,
    patterns: Option<Box<Patterns>>,
}

/// Children with a star, in file order.
#[derive(Debug)]
struct Patterns {
    globs: Vec<(Glob, u32)>,
    starts: Affixes<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchedBy {
    Text,
    Pattern,
}

impl TreeLevel {
    fn new(nodes: &[TreeNode], numbers: &[u32]) -> TreeLevel {
        let text = |number: u32| &*node_at(nodes, number).text;
        let mut exact = HashTable::with_capacity(numbers.len());
        let mut globs = Vec::new();
        for number in numbers {
            let own = text(*number);
            exact
                .entry(hash(own), |known| text(*known) == own, |known| hash(text(*known)))
                .or_insert(*number);
            if own.contains('*') {
                globs.push((Glob::without_escapes(own), *number));
            }
        }
        let patterns = (!globs.is_empty()).then(|| Box::new(Patterns::new(globs)));
        TreeLevel { exact, patterns }
    }

    #[inline]
    fn child<'n>(&self, nodes: &'n [TreeNode], key: &str, value: &str) -> Option<(&'n TreeNode, MatchedBy)> {
        if self.exact.is_empty() {
            return None;
        }
        let mut text = ArrayString::<TEXT_BYTES_MAX>::new();
        let fits = [key, "_", value].iter().all(|part| text.try_push_str(part).is_ok());
        let by_value = if fits {
            self.by_value(nodes, &text)
        } else {
            // Longer than the wire protocol allows.
            self.by_value(nodes, &format!("{key}_{value}"))
        };
        by_value.or_else(|| Some((self.by_text(nodes, key)?, MatchedBy::Text)))
    }

    fn by_value<'n>(&self, nodes: &'n [TreeNode], text: &str) -> Option<(&'n TreeNode, MatchedBy)> {
        if let Some(node) = self.by_text(nodes, text) {
            return Some((node, MatchedBy::Text));
        }
        let number = self.patterns.as_ref()?.first(text)?;
        Some((node_at(nodes, number), MatchedBy::Pattern))
    }

    #[inline]
    fn by_text<'n>(&self, nodes: &'n [TreeNode], text: &str) -> Option<&'n TreeNode> {
        let is = |number: &u32| *node_at(nodes, *number).text == *text;
        Some(node_at(nodes, *self.exact.find(hash(text), is)?))
    }
}

impl Patterns {
    fn new(globs: Vec<(Glob, u32)>) -> Patterns {
        let mut starts = Affixes::default();
        for (index, (glob, _)) in globs.iter().enumerate() {
            starts.push(glob.ends().map_or("", |(start, ..)| start), index);
        }
        Patterns { globs, starts }
    }

    /// Returns the first pattern in file order that matches. Equal prefixes are tested in turn.
    fn first(&self, text: &str) -> Option<u32> {
        #[allow(clippy::indexing_slicing, reason = "the places are those of the patterns")]
        let pattern = |index: usize| &self.globs[index];
        let mut first: Option<usize> = None;
        for indices in self.starts.at_start(text) {
            let sooner = indices.iter().copied().take_while(|index| first.is_none_or(|first| *index < first));
            first = { sooner }.find(|index| pattern(*index).0.matches(text)).or(first);
        }
        Some(pattern(first?).1)
    }
}

/// The hits of one request, in the order of the rules.
pub type NodeHits = ArrayVec<NodeHit, DESCRIPTORS_MAX>;

/// A node hit by one request, with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHit {
    /// The node, and the entries that count by pattern.
    pub hit: Hit,
    /// The number of descriptors with this node and key; each costs as much as the request.
    pub times: u32,
    /// The index of the first of them, from 0.
    pub descriptor: u8,
}

type FoundNode<'d, 'a> = (Hit, &'d [(&'a str, &'a str)]);

impl Tree {
    /// Finds the hits of a request's descriptors, at most [`DESCRIPTORS_MAX`], and stores them in `hits`.
    /// Replacement applies after the search: two limits that replace each other both drop out, and a replaced
    /// limit still replaces others. Unlimited ones are never replaced.
    pub fn select_hits<'d, 'a: 'd>(
        &self,
        descriptors: impl Iterator<Item = &'d [(&'a str, &'a str)]>,
        hits: &mut NodeHits,
    ) {
        hits.clear();
        if self.is_empty() {
            return;
        }
        let mut found: ArrayVec<(u8, FoundNode<'d, 'a>), DESCRIPTORS_MAX> = ArrayVec::new();
        for (number, descriptor) in (0u8..).zip(descriptors.take(DESCRIPTORS_MAX)) {
            if let Some(hit) = self.find(descriptor) {
                found.push((number, (hit, descriptor)));
            }
        }
        for (index, (number, one)) in found.iter().enumerate() {
            if self.is_replaced(one.0, &found) {
                continue;
            }
            let before = found.get(..index).unwrap_or_default();
            match before.iter().find(|(_, other)| self.is_same(one, other)) {
                Some((first, _)) => {
                    let same = hits.iter_mut().find(|hit| hit.descriptor == *first);
                    same.into_iter().for_each(|hit| hit.times += 1);
                }
                None => hits.push(NodeHit { hit: one.0, times: 1, descriptor: *number }),
            }
        }
        // Stable sort: of the keys of one rule, that of the first descriptor stays first.
        hits.sort_by_key(|hit| hit.hit.rule);
    }

    /// Returns the descriptors that share the state of a hit, as bits: the lowest is the first descriptor.
    pub(crate) fn descriptors_of<'d, 'a: 'd>(
        &self,
        hit: &NodeHit,
        descriptors: impl Iterator<Item = &'d [(&'a str, &'a str)]> + Clone,
    ) -> u8 {
        let own = (hit.hit, descriptors.clone().nth(usize::from(hit.descriptor)).unwrap_or_default());
        let bits = (0u32..).zip(descriptors.take(DESCRIPTORS_MAX)).map(|(index, descriptor)| {
            let found = self.find(descriptor);
            u8::from(found.is_some_and(|found| self.is_same(&own, &(found, descriptor)))) << index
        });
        bits.fold(0, std::ops::BitOr::bitor)
    }

    fn is_replaced(&self, hit: Hit, found: &[(u8, FoundNode<'_, '_>)]) -> bool {
        let Some(limiting) = self.limiting(hit.rule) else { return false };
        let Some(name) = limiting.name.filter(|_| !limiting.unlimited) else { return false };
        let replacing = found.iter().filter_map(|(_, (hit, _))| self.limiting(hit.rule));
        replacing.into_iter().any(|limiting| limiting.replaces.contains(&name))
    }

    /// Whether two hits share one state.
    fn is_same(&self, (hit, descriptor): &FoundNode<'_, '_>, (other, theirs): &FoundNode<'_, '_>) -> bool {
        hit.rule == other.rule && self.key_values(*hit, descriptor).eq(self.key_values(*other, theirs))
    }
}

#[derive(Debug)]
pub(super) struct Branch {
    pub(super) key: Box<str>,
    /// `key_value`, or the key alone.
    pub(super) text: Box<str>,
    pub(super) position: Position,
    /// Whether all values that it matches as a pattern share one state.
    pub(super) share: bool,
    pub(super) limit: Option<NodeLimit>,
    /// Its children in file order.
    pub(super) branches: Vec<Branch>,
}

/// The limit of a node.
#[derive(Debug)]
pub(super) struct NodeLimit {
    /// Its rule, which gets its name from the draft and its key from the tree.
    pub(super) rule: Rule,
    /// The name by which other limits replace it.
    pub(super) name: Option<Box<str>>,
    /// Names of the limits that it replaces, with their positions.
    pub(super) replaces: Vec<(Box<str>, Position)>,
}

impl Branch {
    /// Names the rules of all limits in the subtree, parents before children. `name` gets the texts on the
    /// path and the position.
    pub(super) fn name_rules<'b>(
        &'b mut self,
        path: &mut Vec<&'b str>,
        name: &mut impl FnMut(&[&str], &Position) -> Box<str>,
    ) {
        path.push(&self.text);
        if let Some(limit) = &mut self.limit {
            limit.rule.name = name(path, &self.position);
        }
        self.branches.iter_mut().for_each(|branch| branch.name_rules(path, name));
        path.pop();
    }

    /// Collects all limits of the subtree.
    pub(super) fn limits<'b>(&'b self, limits: &mut Vec<&'b NodeLimit>) {
        limits.extend(&self.limit);
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
pub(super) fn rule_name(path: &[&str]) -> Box<str> {
    let name = readable(path);
    if name.len() > RULE_BYTES_MAX { ended_by_digest(name, path) } else { name.into() }
}

/// Returns a unique name for a rule whose readable name is taken, with a digest of the path.
pub(super) fn rule_name_apart(path: &[&str]) -> Box<str> {
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

/// The maximum of one request.
pub const DESCRIPTORS_MAX: usize = 8;

/// The longest rule name in a reply.
const RULE_BYTES_MAX: usize = 255;

/// A tilde and eight digits.
const DIGEST_BYTES: usize = 9;

/// The longest key and value on the wire, and the `_` between them.
const TEXT_BYTES_MAX: usize = 64 + 1 + 1_024;
