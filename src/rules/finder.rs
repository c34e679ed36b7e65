//! A lookup from values to items by equality, prefix, suffix, part or network. It scales to ten thousands of items.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use foldhash::fast::FixedState;

use super::affixes::Affixes;
use super::parts::Parts;
use super::{Network, Pattern, fold, network};

/// A necessary condition of a pattern by which values are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Anchor<'p> {
    /// The value is this text. The flag here and below: the value in lower case.
    Equal(&'p str, bool),
    Start(&'p str, bool),
    End(&'p str, bool),
    Part(&'p str, bool),
    /// The value is an address in this network.
    Within(Network),
}

impl<'p> Anchor<'p> {
    /// Returns the anchor of a pattern, if any, and whether each value with that anchor matches.
    pub(super) fn of(pattern: &'p Pattern) -> Option<(Anchor<'p>, bool)> {
        let glob = |glob: &'p super::Glob, any_case| match (glob.as_literal(), glob.ends()) {
            (Some(literal), _) => Some((Anchor::Equal(literal, any_case), true)),
            // The longer of the two is more selective.
            (_, Some((start, end, alone))) if start.len() >= end.len() && !start.is_empty() => {
                Some((Anchor::Start(start, any_case), alone && end.is_empty()))
            }
            (_, Some((start, end, alone))) if !end.is_empty() => {
                Some((Anchor::End(end, any_case), alone && start.is_empty()))
            }
            _ => glob.part().map(|(part, alone)| (Anchor::Part(part, any_case), alone)),
        };
        match pattern {
            Pattern::Exact(text) => Some((Anchor::Equal(text, false), true)),
            Pattern::Glob(pattern) => glob(pattern, false),
            Pattern::AnyCase(pattern) => glob(pattern, true),
            Pattern::Network(network) => Some((Anchor::Within(*network), true)),
            Pattern::Not(_) | Pattern::Present => None,
        }
    }
}

/// Items by the anchors of their patterns.
#[derive(Debug)]
pub(super) struct Finder<I> {
    texts: PatternTexts<I>,
    /// For values in lower case.
    any_case: Option<PatternTexts<I>>,
    /// By whether they are of IPv4, and by prefix length. An address costs one lookup for each of these few kinds.
    networks: BTreeMap<(bool, u8), HashMap<IpAddr, Vec<I>, FixedState>>,
}

impl<I> Finder<I> {
    pub(super) fn new<'p>(hung: impl IntoIterator<Item = (Anchor<'p>, I)>) -> Finder<I> {
        let mut finder = Finder { texts: PatternTexts::default(), any_case: None, networks: BTreeMap::new() };
        let (mut parts, mut lower_parts) = (Vec::new(), Vec::new());
        for (anchor, item) in hung {
            let texts = match anchor {
                Anchor::Equal(_, true)
                | Anchor::Start(_, true)
                | Anchor::End(_, true)
                | Anchor::Part(_, true) => finder.any_case.get_or_insert_default(),
                _ => &mut finder.texts,
            };
            match anchor {
                Anchor::Part(text, lower) => {
                    if lower { &mut lower_parts } else { &mut parts }.push((text, item));
                }
                Anchor::Equal(text, _) => texts.equal.entry(text.into()).or_default().push(item),
                Anchor::Start(text, _) => texts.starts.push(text, item),
                Anchor::End(text, _) => texts.ends.push(text, item),
                Anchor::Within(network) => {
                    let kind = (network.address().is_ipv4(), network.bits());
                    finder.networks.entry(kind).or_default().entry(network.address()).or_default().push(item);
                }
            }
        }
        finder.texts.parts = Parts::new(parts);
        if let Some(texts) = &mut finder.any_case {
            texts.parts = Parts::new(lower_parts);
        }
        finder
    }

    /// Passes the items of a value to `is_enough` until it returns true; returns whether it did. Items under
    /// two anchors of the value are passed twice.
    pub(super) fn any(&self, value: &str, mut is_enough: impl FnMut(&[I]) -> bool) -> bool {
        is_enough(self.equal(value)) || self.any_other(value, is_enough)
    }

    pub(super) fn equal(&self, value: &str) -> &[I] {
        self.texts.equal(value)
    }

    /// Like [`Finder::any`], without the items of [`Finder::equal`].
    pub(super) fn any_other(&self, value: &str, mut is_enough: impl FnMut(&[I]) -> bool) -> bool {
        self.texts.any_piece(value, &mut is_enough)
            || self.any_network(value, &mut is_enough)
            || self.any_case.as_ref().is_some_and(|texts| {
                fold::with_lowercase(value, |value| {
                    let equal = texts.equal(value);
                    !equal.is_empty() && is_enough(equal) || texts.any_piece(value, &mut is_enough)
                })
            })
    }

    fn any_network(&self, value: &str, is_enough: &mut impl FnMut(&[I]) -> bool) -> bool {
        if self.networks.is_empty() {
            return false;
        }
        let Some(address) = network::address(value) else { return false };
        let of_family = self.networks.range((address.is_ipv4(), 0)..=(address.is_ipv4(), u8::MAX));
        let mut found =
            of_family.filter_map(|((_, bits), networks)| networks.get(&network::masked(address, *bits)));
        found.any(|items| is_enough(items))
    }
}

#[derive(Debug)]
struct PatternTexts<I> {
    equal: HashMap<Box<str>, Vec<I>, FixedState>,
    starts: Affixes<I>,
    ends: Affixes<I>,
    parts: Option<Parts<I>>,
}

impl<I> Default for PatternTexts<I> {
    fn default() -> Self {
        let (equal, starts, ends) = Default::default();
        PatternTexts { equal, starts, ends, parts: None }
    }
}

impl<I> PatternTexts<I> {
    fn equal(&self, value: &str) -> &[I] {
        self.equal.get(value).map_or(&[], Vec::as_slice)
    }

    fn any_piece(&self, value: &str, is_enough: &mut impl FnMut(&[I]) -> bool) -> bool {
        self.starts.at_start(value).chain(self.ends.at_end(value)).any(&mut *is_enough)
            || self.parts.as_ref().is_some_and(|parts| parts.any(value, is_enough))
    }
}
