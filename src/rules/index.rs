//! Finds the rules that match a request without looking at every rule.
//!
//! Each rule hangs on one *anchor* that a matching request must have: an attribute equal to one of a few values
//! where the rule asks for that, else the presence of an attribute, else nothing. A request is asked for its
//! anchors only, so rules for other paths and other users cost nothing.

use std::collections::HashMap;

use arrayvec::ArrayVec;
use hashbrown::HashTable;

use super::names::{Names, hash};
use super::{Mode, Pattern, Rule};

/// The rules of one domain, by what a request must have to match them.
#[derive(Debug)]
pub(super) struct Index {
    names: Names,
    anchors: Vec<Anchors>,
    always: Vec<Hung>,
    plans: Vec<Plan>,
}

/// The rules that hang on one attribute.
#[derive(Debug, Default)]
struct Anchors {
    present: Vec<Hung>,
    equal: HashTable<(Box<str>, Vec<Hung>)>,
    /// A bit for each length that a value in `equal` has, the last for all that are longer: most other values are of
    /// a length that none has, and are not even hashed.
    lengths: u64,
}

/// A rule on its anchor.
#[derive(Clone, Copy, Debug)]
struct Hung {
    rule: u32,
    /// It asks for nothing but its anchor.
    surely: bool,
}

/// What one rule asks, with its attributes as numbers.
#[derive(Debug)]
struct Plan {
    conditions: Vec<(AttributeId, Vec<Pattern>)>,
    key: Vec<AttributeId>,
}

type AttributeId = usize;

/// The attributes of one request that some rule asks about: the first value of each name.
#[derive(Debug, Default)]
pub struct Selection<'a> {
    values: ArrayVec<(AttributeId, &'a str), ATTRIBUTES_MAX>,
}

impl Index {
    pub(super) fn new(rules: &[Rule]) -> Index {
        let mut index =
            Index { names: Names::default(), anchors: Vec::new(), always: Vec::new(), plans: Vec::new() };
        for rule in rules {
            let conditions = rule.conditions.iter();
            let conditions = conditions.map(|is| (index.intern(&is.attribute), is.any_of.clone())).collect();
            let key = rule.key.iter().map(|part| index.intern(&part.attribute)).collect();
            index.plans.push(Plan { conditions, key });
        }
        let plans = std::mem::take(&mut index.plans);
        let frequency = Frequency::of(&plans);
        for ((number, rule), plan) in (0u32..).zip(rules).zip(&plans) {
            // A disabled rule hangs nowhere: it is never judged.
            if rule.mode != Mode::Disabled {
                index.hang(number, plan, &frequency);
            }
        }
        index.plans = plans;
        index
    }

    /// Finds the enabled rules that match, in file order, and replaces what `matching` held by their numbers.
    #[inline]
    pub(super) fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        matching.clear();
        selection.values.clear();
        let mut candidates = Candidates { rules: matching, lists: 0, unsure: false };
        candidates.take(&self.always);
        for (name, value) in attributes {
            let Some(attribute) = self.names.find(name) else { continue };
            let is_first = selection.values.iter().all(|(seen, _)| *seen != attribute);
            if !is_first || selection.values.try_push((attribute, value)).is_err() || value.is_empty() {
                continue;
            }
            let Some(anchors) = self.anchors.get(attribute) else { continue };
            candidates.take(&anchors.present);
            candidates.take(anchors.equal_to(value));
        }
        let Candidates { rules, lists, unsure } = candidates;
        if unsure {
            rules.retain(|rule| self.plans.get(*rule as usize).is_some_and(|plan| plan.matches(selection)));
        }
        if lists > 1 {
            rules.sort_unstable();
        }
    }

    /// The values of a matching rule's key, in the rule's order.
    pub(super) fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl ExactSizeIterator<Item = &'a str> + 's {
        let key = self.plans.get(rule as usize).map_or(&[][..], |plan| &plan.key);
        // Present, for the rule matched.
        key.iter().map(|attribute| selection.value(*attribute).unwrap_or_default())
    }

    fn intern(&mut self, name: &str) -> AttributeId {
        let attribute = self.names.intern(name);
        if attribute == self.anchors.len() {
            self.anchors.push(Anchors::default());
        }
        attribute
    }

    /// Hangs a rule on the rarest thing it asks for.
    fn hang(&mut self, rule: u32, plan: &Plan, frequency: &Frequency<'_>) {
        let equalities = plan
            .conditions
            .iter()
            .filter_map(|(attribute, patterns)| exact_values(patterns).map(|values| (*attribute, values)));
        let rarest = equalities.min_by_key(|(attribute, values)| frequency.of_values(*attribute, values));
        if let Some((attribute, mut values)) = rarest {
            values.sort_unstable();
            values.dedup();
            let hung = Hung { rule, surely: plan.conditions.len() == 1 && plan.asks_only_for(attribute) };
            if let Some(anchors) = self.anchors.get_mut(attribute) {
                values.iter().for_each(|value| anchors.hang_on_value(value, hung));
            }
            return;
        }
        let rarest = plan.attributes().min_by_key(|attribute| frequency.of_presence(*attribute));
        match rarest.and_then(|attribute| Some((attribute, self.anchors.get_mut(attribute)?))) {
            Some((attribute, anchors)) => {
                let surely = plan.conditions.is_empty() && plan.asks_only_for(attribute);
                anchors.present.push(Hung { rule, surely });
            }
            None => self.always.push(Hung { rule, surely: true }),
        }
    }
}

/// Rules that may match.
struct Candidates<'m> {
    rules: &'m mut Vec<u32>,
    /// Lists that they came from: more than one, and they are out of order.
    lists: u32,
    /// Some ask for more than their anchor.
    unsure: bool,
}

impl Candidates<'_> {
    #[inline]
    fn take(&mut self, hung: &[Hung]) {
        if hung.is_empty() {
            return;
        }
        self.lists += 1;
        for Hung { rule, surely } in hung {
            self.rules.push(*rule);
            self.unsure |= !surely;
        }
    }
}

impl Anchors {
    #[inline]
    fn equal_to(&self, value: &str) -> &[Hung] {
        if self.lengths & length_bit(value) == 0 {
            return &[];
        }
        self.equal.find(hash(value), |(known, _)| **known == *value).map_or(&[], |(_, rules)| rules)
    }

    fn hang_on_value(&mut self, value: &str, hung: Hung) {
        self.lengths |= length_bit(value);
        let entry = self.equal.entry(hash(value), |(known, _)| **known == *value, |(known, _)| hash(known));
        entry.or_insert_with(|| (value.into(), Vec::new())).into_mut().1.push(hung);
    }
}

impl Plan {
    #[inline]
    fn matches(&self, selection: &Selection<'_>) -> bool {
        let has = |attribute: &AttributeId| selection.value(*attribute).is_some();
        self.key.iter().all(has)
            && self.conditions.iter().all(|(attribute, patterns)| {
                let value = selection.value(*attribute);
                value.is_some_and(|value| patterns.iter().any(|pattern| pattern.holds(value)))
            })
    }

    fn asks_only_for(&self, attribute: AttributeId) -> bool {
        self.attributes().all(|asked| asked == attribute)
    }

    fn attributes(&self) -> impl Iterator<Item = AttributeId> + '_ {
        self.conditions.iter().map(|(attribute, _)| *attribute).chain(self.key.iter().copied())
    }
}

impl<'a> Selection<'a> {
    /// The value of an attribute; an empty one is absent.
    #[inline]
    fn value(&self, attribute: AttributeId) -> Option<&'a str> {
        let found = self.values.iter().find(|(known, _)| *known == attribute);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }
}

/// How many rules ask for what: the rarest anchor keeps the lists short.
struct Frequency<'p> {
    values: HashMap<(AttributeId, &'p str), usize>,
    presence: HashMap<AttributeId, usize>,
}

impl<'p> Frequency<'p> {
    fn of(plans: &'p [Plan]) -> Frequency<'p> {
        let mut frequency = Frequency { values: HashMap::new(), presence: HashMap::new() };
        for plan in plans {
            for (attribute, patterns) in &plan.conditions {
                for value in exact_values(patterns).unwrap_or_default() {
                    *frequency.values.entry((*attribute, value)).or_default() += 1;
                }
            }
            for attribute in plan.attributes() {
                *frequency.presence.entry(attribute).or_default() += 1;
            }
        }
        frequency
    }

    fn of_values(&self, attribute: AttributeId, values: &[&str]) -> usize {
        values.iter().filter_map(|value| self.values.get(&(attribute, *value))).sum()
    }

    fn of_presence(&self, attribute: AttributeId) -> usize {
        self.presence.get(&attribute).copied().unwrap_or_default()
    }
}

#[inline]
fn length_bit(value: &str) -> u64 {
    1 << value.len().min(63)
}

/// The values themselves, when all of the patterns are literal.
fn exact_values(patterns: &[Pattern]) -> Option<Vec<&str>> {
    patterns.iter().map(Pattern::as_exact).collect()
}

/// Attributes that one request can carry: 8 descriptors of 16 pairs.
const ATTRIBUTES_MAX: usize = 128;
