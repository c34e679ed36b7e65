//! Finds the rules that match a request without looking at every rule.
//!
//! Each rule hangs on one *anchor* that a matching request must have: an attribute equal to one of a few values
//! where the rule asks for that, else the presence of an attribute, else nothing. A request is asked for its
//! anchors only, so rules for other paths and other users cost nothing.

use std::collections::HashMap;

use arrayvec::ArrayVec;
use hashbrown::HashTable;

use super::names::{Names, hash};
use super::rule::{Mode, Pattern, Rule};

/// The rules of one domain, by what a request must have to match them.
#[derive(Debug)]
pub(super) struct Index {
    names: Names,
    anchors: Vec<Anchors>,
    always: Vec<u32>,
    plans: Vec<Plan>,
}

/// The rules that hang on one attribute.
#[derive(Debug, Default)]
struct Anchors {
    present: Vec<u32>,
    equal: HashTable<(Box<str>, Vec<u32>)>,
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
            let key = rule.key.iter().map(|name| index.intern(name)).collect();
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
        self.recognise(attributes, selection);
        let mut lists = self.take_matching(&self.always, selection, matching);
        for place in 0..selection.values.len() {
            let Some((attribute, value)) = selection.values.get(place).copied() else { break };
            let Some(anchors) = self.anchors.get(attribute).filter(|_| !value.is_empty()) else { continue };
            lists += self.take_matching(&anchors.present, selection, matching);
            lists += self.take_matching(anchors.equal_to(value), selection, matching);
        }
        if lists > 1 {
            matching.sort_unstable();
        }
    }

    /// Finds the attributes that some rule asks about; the first value of a name wins, an empty one as well.
    #[inline]
    fn recognise<'a>(&self, attributes: &[(&'a str, &'a str)], selection: &mut Selection<'a>) {
        selection.values.clear();
        for (name, value) in attributes {
            let Some(attribute) = self.names.find(name) else { continue };
            let is_first = selection.values.iter().all(|(seen, _)| *seen != attribute);
            if is_first && selection.values.try_push((attribute, value)).is_err() {
                return;
            }
        }
    }

    /// Takes those rules of a list that match. Returns how many lists were taken from: one or none.
    #[inline]
    fn take_matching(&self, rules: &[u32], selection: &Selection<'_>, matching: &mut Vec<u32>) -> u32 {
        let before = matching.len();
        for rule in rules {
            if self.plans.get(*rule as usize).is_some_and(|plan| plan.matches(selection)) {
                matching.push(*rule);
            }
        }
        u32::from(matching.len() > before)
    }

    /// The values of a matching rule's key, in the rule's order.
    pub(super) fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl Iterator<Item = &'a str> + 's {
        let key = self.plans.get(rule as usize).map_or(&[][..], |plan| &plan.key);
        key.iter().filter_map(|attribute| selection.value(*attribute))
    }

    fn intern(&mut self, name: &str) -> AttributeId {
        let attribute = self.names.intern(name);
        if attribute == self.anchors.len() {
            self.anchors.push(Anchors::default());
        }
        attribute
    }

    /// Hangs a rule on the rarest thing it asks for.
    fn hang(&mut self, number: u32, plan: &Plan, frequency: &Frequency<'_>) {
        let equalities = plan
            .conditions
            .iter()
            .filter_map(|(attribute, patterns)| exact_values(patterns).map(|values| (*attribute, values)));
        let rarest = equalities.min_by_key(|(attribute, values)| frequency.of_values(*attribute, values));
        if let Some((attribute, mut values)) = rarest {
            values.sort_unstable();
            values.dedup();
            if let Some(anchors) = self.anchors.get_mut(attribute) {
                values.iter().for_each(|value| anchors.hang_on_value(value, number));
            }
            return;
        }
        let rarest = plan.attributes().min_by_key(|attribute| frequency.of_presence(*attribute));
        match rarest.and_then(|attribute| self.anchors.get_mut(attribute)) {
            Some(anchors) => anchors.present.push(number),
            None => self.always.push(number),
        }
    }
}

impl Anchors {
    #[inline]
    fn equal_to(&self, value: &str) -> &[u32] {
        if self.equal.is_empty() {
            return &[];
        }
        self.equal.find(hash(value), |(known, _)| **known == *value).map_or(&[], |(_, rules)| rules)
    }

    fn hang_on_value(&mut self, value: &str, rule: u32) {
        let entry = self.equal.entry(hash(value), |(known, _)| **known == *value, |(known, _)| hash(known));
        entry.or_insert_with(|| (value.into(), Vec::new())).into_mut().1.push(rule);
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

/// The values themselves, when all of the patterns are literal.
fn exact_values(patterns: &[Pattern]) -> Option<Vec<&str>> {
    patterns.iter().map(Pattern::as_exact).collect()
}

/// Attributes that one request can carry: 8 descriptors of 16 pairs.
const ATTRIBUTES_MAX: usize = 128;
