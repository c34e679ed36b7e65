//! The descriptor tree of one domain: finds the node that limits a descriptor. It knows no counter and no clock.
//!
//! It is that of envoyproxy/ratelimit (`src/config/config_impl.go`): entries are taken one after the other, each by a
//! node that is named `key_value`, else by the first pattern in file order that fits `key_value`, else by a node that
//! is named by the key alone. There is no way back up: what an exact node hides stays hidden.

mod branch;
mod hits;
mod level;

use super::meaning::shared;
use super::{Allowance, FleetTerms, KeyPart, Limit, Mode, Refused, Rule};
use crate::limit::Quota as AnyQuota;
use crate::limit::fixed_window::{Align, Quota};
use level::{By, Level};

pub(super) use branch::{Amount, Branch, NodeLimit, rule_name, rule_name_apart};
pub use hits::{DESCRIPTORS_MAX, NodeHit, NodeHits};

/// The descriptor tree of one domain.
#[derive(Debug, Default)]
pub struct Tree {
    root: Level,
    nodes: Vec<Node>,
    limits: Vec<Limiting>,
    /// Of the nodes that limit, until the domain has them among its own.
    rules: Vec<Rule>,
    /// The number of the first of them in the domain.
    first_rule: u32,
    /// The most entries that any node is reached by.
    depth: usize,
}

/// One entry of the path of a descriptor.
#[derive(Debug)]
struct Node {
    /// `key_value`, or the key alone; perhaps with stars.
    text: Box<str>,
    /// All that it matches as a pattern count together.
    share: bool,
    below: Level,
    /// Its place in the tree's list of limits.
    limit: Option<u32>,
}

/// What is known of a node that limits.
#[derive(Debug)]
struct Limiting {
    /// The nodes from the root to it, itself included.
    path: Box<[u32]>,
    unlimited: bool,
    /// What others replace it by, as a number.
    name: Option<u32>,
    /// What it replaces.
    replaces: Box<[u32]>,
}

/// The node that limits a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The number of its rule in the domain.
    pub rule: u32,
    /// The entries that count by the text of the pattern that they matched, not by their own: a bit for each.
    shared: u32,
}

impl Tree {
    /// A tree of these nodes. Of two alike on one level the first stays: the reader lets no two pass.
    pub(super) fn new(branches: Vec<Branch>) -> Tree {
        let mut tree = Tree::default();
        let mut names = super::names::Names::default();
        let mut path = Vec::new();
        tree.root = tree.grow(branches, &mut path, &mut names);
        tree
    }

    /// Whether it limits nothing.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The node that limits a descriptor, if there is one. Only a node as deep as the descriptor is long does; one
    /// without a limit ends the search all the same.
    #[must_use]
    pub fn find(&self, descriptor: &[(&str, &str)]) -> Option<Hit> {
        if descriptor.len() > self.depth {
            return None;
        }
        let (mut level, mut limit, mut shared) = (&self.root, None, 0);
        for (place, (key, value)) in (0u32..).zip(descriptor) {
            let (node, by) = level.child(&self.nodes, key, value)?;
            if by == By::Pattern && node.share {
                shared |= 1u32.checked_shl(place).unwrap_or_default();
            }
            (level, limit) = (&node.below, node.limit);
        }
        Some(Hit { rule: self.first_rule + limit?, shared })
    }

    /// The text of every node: `key_value`, or the key alone; perhaps with stars.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| &*node.text)
    }

    /// How many nodes it has, those without a limit included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The texts of the nodes from the top to the one that a rule of the domain belongs to: `key_value`, or the key
    /// alone. `None`: the rule is none of the tree's.
    #[must_use]
    pub fn path(&self, rule: u32) -> Option<Vec<&str>> {
        let path = &self.limiting(rule)?.path;
        Some(path.iter().map(|node| &*node_at(&self.nodes, *node).text).collect())
    }

    /// What a hit counts by: for each entry of the descriptor that it was found for, the key and the value, or the
    /// pattern in place of the value where all that it matches count together.
    #[allow(
        clippy::indexing_slicing,
        reason = "the hit was found for it: counted apart, each value would have it all"
    )]
    pub fn key_values<'s, 'a: 's>(
        &'s self,
        hit: Hit,
        descriptor: &'s [(&'a str, &'a str)],
    ) -> impl ExactSizeIterator<Item = &'s str> + 's {
        let path = &self.limits[(hit.rule - self.first_rule) as usize].path;
        (0..2 * descriptor.len()).map(move |at| {
            let place = at / 2;
            let (key, value) = descriptor[place];
            match (at % 2, hit.shared >> place & 1) {
                (0, _) => key,
                (_, 0) => value,
                _ => node_at(&self.nodes, path[place]).value_behind(key),
            }
        })
    }

    /// Hands the rules of its nodes over to the domain, which numbers them behind those it has.
    pub(super) fn hang_behind(&mut self, rules: &mut Vec<Rule>) {
        self.first_rule = u32::try_from(rules.len()).unwrap_or(u32::MAX);
        rules.append(&mut self.rules);
    }

    /// The number of the first of its rules in the domain.
    pub(super) fn first_rule(&self) -> usize {
        self.first_rule as usize
    }

    /// How many rules it has to hand over.
    pub(super) fn rules_len(&self) -> usize {
        self.rules.len()
    }

    fn limiting(&self, rule: u32) -> Option<&Limiting> {
        self.limits.get(rule.checked_sub(self.first_rule)? as usize)
    }

    fn grow(
        &mut self,
        branches: Vec<Branch>,
        path: &mut Vec<(u32, Option<Box<str>>)>,
        names: &mut super::names::Names,
    ) -> Level {
        let mut numbers = Vec::with_capacity(branches.len());
        for branch in branches {
            let number = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
            path.push((number, branch.counted()));
            self.depth = self.depth.max(path.len());
            let limit = branch.limit.map(|limit| {
                let own = u32::try_from(self.limits.len()).unwrap_or(u32::MAX);
                self.limits.push(Limiting {
                    path: path.iter().map(|(number, _)| *number).collect(),
                    unlimited: limit.amount.is_none(),
                    name: limit.name.as_deref().map(|name| number_of(name, names)),
                    replaces: limit.replaces.iter().map(|(name, _)| number_of(name, names)).collect(),
                });
                let key = path.iter().filter_map(|(_, counted)| counted.as_deref()).map(KeyPart::plain);
                self.rules.push(Rule {
                    key: key.collect(),
                    mode: if limit.shadow || limit.quota { Mode::Shadow } else { Mode::Enforce },
                    is_quota: limit.quota && !limit.shadow,
                    fleet: limit.fleet,
                    ..Rule::new(&limit.rule, branch.position, limit_of(limit.amount, limit.fleet.as_ref()))
                });
                own
            });
            let node = Node { text: branch.text, share: branch.share, below: Level::default(), limit };
            self.nodes.push(node);
            // A parent comes before its children, also among the rules.
            let below = self.grow(branch.branches, path, names);
            #[allow(
                clippy::indexing_slicing,
                reason = "it has just been put there: what is below would be lost"
            )]
            {
                self.nodes[number as usize].below = below;
            }
            numbers.push(number);
            path.pop();
        }
        Level::new(&self.nodes, &numbers)
    }
}

impl Node {
    /// The part of a pattern that stands for the value of an entry with this key; all of it where the star begins in
    /// the key.
    fn value_behind(&self, key: &str) -> &str {
        self.text.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(&self.text)
    }
}

/// The node of this number.
#[inline]
#[allow(
    clippy::indexing_slicing,
    reason = "the numbers are those of nodes: one that is not found limits nothing"
)]
fn node_at(nodes: &[Node], number: u32) -> &Node {
    &nodes[number as usize]
}

fn number_of(name: &str, names: &mut super::names::Names) -> u32 {
    u32::try_from(names.intern(name)).unwrap_or(u32::MAX)
}

/// A node's limit: windows from the start of Unix time on, and what is refused counts.
fn limit_of(amount: Option<Amount>, fleet: Option<&FleetTerms>) -> Limit {
    let allowance = amount.map(|amount| {
        let quota = Quota::new(amount.count, amount.period(), Align::Epoch);
        let quota = quota.unwrap_or_else(|_| unreachable!("no window of a unit is too long or too short"));
        Allowance::new(AnyQuota::FixedWindow(quota))
    });
    let limit = Limit { allowances: vec![allowance], refused: Refused::Counted, block: None, soft_for: None };
    match fleet {
        Some(terms) => shared(limit, terms),
        None => limit,
    }
}
