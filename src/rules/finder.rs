//! A lookup from values to items by equality, prefix, suffix, part or network. It scales to ten thousands of items.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use arrayvec::ArrayVec;
use foldhash::fast::FixedState;

use super::parts::Parts;
use super::prefixes::Prefixes;
use super::values::VALUE_BYTES_MAX;
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

    fn is_any_case(&self) -> bool {
        use Anchor::{End, Equal, Part, Start};
        matches!(self, Equal(_, true) | Start(_, true) | End(_, true) | Part(_, true))
    }
}

#[derive(Debug)]
pub(super) struct Finder<I> {
    texts: PatternTexts<I>,
    /// For values in lower case.
    any_case: Option<PatternTexts<I>>,
    networks: Networks<I>,
}

impl<I> Finder<I> {
    pub(super) fn new<'p>(hung: impl IntoIterator<Item = (Anchor<'p>, I)>) -> Finder<I> {
        let (mut texts, mut any_case) = (UncompiledTexts::default(), UncompiledTexts::default());
        let mut networks = Networks { kinds: BTreeMap::new() };
        for (anchor, item) in hung {
            let texts = if anchor.is_any_case() { &mut any_case } else { &mut texts };
            match anchor {
                Anchor::Equal(text, _) => texts.equal.push((text, item)),
                Anchor::Start(text, _) => texts.starts.push((text.as_bytes().to_vec(), item)),
                Anchor::End(text, _) => texts.ends.push((text.bytes().rev().collect(), item)),
                Anchor::Part(text, _) => texts.parts.push((text, item)),
                Anchor::Within(network) => networks.hang(network, item),
            }
        }
        let any_case = PatternTexts::new(any_case);
        Finder {
            texts: PatternTexts::new(texts),
            any_case: (!any_case.is_empty()).then_some(any_case),
            networks,
        }
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
            || self.networks.any(value, &mut is_enough)
            || self.any_case.as_ref().is_some_and(|texts| {
                fold::with_lowercase(value, |value| {
                    let equal = texts.equal(value);
                    !equal.is_empty() && is_enough(equal) || texts.any_piece(value, &mut is_enough)
                })
            })
    }
}

struct UncompiledTexts<'p, I> {
    equal: Vec<(&'p str, I)>,
    starts: Vec<(Vec<u8>, I)>,
    ends: Vec<(Vec<u8>, I)>,
    parts: Vec<(&'p str, I)>,
}

impl<I> Default for UncompiledTexts<'_, I> {
    fn default() -> Self {
        UncompiledTexts { equal: Vec::new(), starts: Vec::new(), ends: Vec::new(), parts: Vec::new() }
    }
}

#[derive(Debug)]
struct PatternTexts<I> {
    equal: HashMap<Box<str>, Vec<I>, FixedState>,
    /// The [`length_bit`] of each text in `equal`. Other values are not hashed.
    equal_lengths: u64,
    starts: Prefixes<I>,
    ends: Prefixes<I>,
    parts: Option<Parts<I>>,
}

impl<I> PatternTexts<I> {
    fn new(written: UncompiledTexts<'_, I>) -> PatternTexts<I> {
        let mut equal: HashMap<Box<str>, Vec<I>, FixedState> = HashMap::default();
        let mut equal_lengths = 0;
        for (text, item) in written.equal {
            equal_lengths |= length_bit(text);
            equal.entry(text.into()).or_default().push(item);
        }
        let (starts, ends) = (Prefixes::new(written.starts), Prefixes::new(written.ends));
        PatternTexts { equal, equal_lengths, starts, ends, parts: Parts::new(written.parts) }
    }

    fn is_empty(&self) -> bool {
        self.equal.is_empty() && self.starts.is_empty() && self.ends.is_empty() && self.parts.is_none()
    }

    fn equal(&self, value: &str) -> &[I] {
        if self.equal_lengths & length_bit(value) == 0 {
            return &[];
        }
        self.equal.get(value).map_or(&[], Vec::as_slice)
    }

    fn any_piece(&self, value: &str, is_enough: &mut impl FnMut(&[I]) -> bool) -> bool {
        !self.starts.is_empty() && self.starts.any(value.as_bytes(), &mut *is_enough)
            || !self.ends.is_empty() && backwards(value, |value| self.ends.any(value, &mut *is_enough))
            || self.parts.as_ref().is_some_and(|parts| parts.any(value, is_enough))
    }
}

/// One bit per length of a text, the last for all greater ones.
#[inline]
pub(super) fn length_bit(value: &str) -> u64 {
    1 << value.len().min(63)
}

/// Calls `use_it` with the reversed bytes of a value. Values that fit the wire protocol do not allocate.
fn backwards<R>(value: &str, use_it: impl FnOnce(&[u8]) -> R) -> R {
    if value.len() > VALUE_BYTES_MAX {
        return use_it(&value.bytes().rev().collect::<Vec<u8>>());
    }
    use_it(&value.bytes().rev().collect::<ArrayVec<u8, VALUE_BYTES_MAX>>())
}

/// Networks by family and prefix length. An address costs one lookup for each of these few kinds.
#[derive(Debug)]
struct Networks<I> {
    /// By whether they are of IPv4, and by prefix length.
    kinds: BTreeMap<(bool, u8), HashMap<IpAddr, Vec<I>, FixedState>>,
}

impl<I> Networks<I> {
    fn hang(&mut self, network: Network, item: I) {
        let kind = (network.address().is_ipv4(), network.bits());
        self.kinds.entry(kind).or_default().entry(network.address()).or_default().push(item);
    }

    fn any(&self, value: &str, is_enough: &mut impl FnMut(&[I]) -> bool) -> bool {
        if self.kinds.is_empty() {
            return false;
        }
        let Some(address) = network::address(value) else { return false };
        let of_family = self.kinds.range((address.is_ipv4(), 0)..=(address.is_ipv4(), u8::MAX));
        let mut found =
            of_family.filter_map(|((_, bits), networks)| networks.get(&network::masked(address, *bits)));
        found.any(|items| is_enough(items))
    }
}
