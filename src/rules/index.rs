//! Finds the rules that match a request without looking at every rule.
//!
//! Each rule hangs on one *anchor* that a matching request must have: an attribute that is one of a few values,
//! starts or ends with one, or is an address of a network, where the rule asks for that; else the presence of an
//! attribute, else nothing. A request is asked for its anchors only, so rules for other paths and other users cost
//! nothing. Entries of `exempt` and `deny` are found with the rules, under the numbers behind theirs.

use std::collections::HashMap;

use hashbrown::HashTable;

use super::finder::{Anchor, Finder};
use super::names::{Names, hash};
use super::plan::{AttributeId, Plan, Selection};
use super::{Condition, Listed, Mode, Priorities, Rule};

/// The rules of one domain, by what a request must have to match them.
#[derive(Debug)]
pub(super) struct Index {
    names: Names,
    anchors: Vec<Anchors>,
    always: Vec<Hung>,
    /// Those of the rules, then those of the lists.
    plans: Vec<Plan>,
    /// The overrides of a rule, in order, each with the number of its allowance.
    overrides: HashMap<u32, Vec<(Plan, u32)>>,
    /// The entries of `prioritize`, each with the place of its priority.
    prioritize: Vec<(Plan, usize)>,
}

/// The rules that hang on one attribute.
#[derive(Debug, Default)]
struct Anchors {
    present: Vec<Hung>,
    /// A bit for each length of a value that some rule may hang on, the last for all that are longer: most values are
    /// of a length that none has, and are not even hashed.
    lengths: u64,
    by_value: Box<ByValue>,
}

/// The rules that hang on values of one attribute.
#[derive(Debug, Default)]
struct ByValue {
    equal: HashTable<(Box<str>, Vec<Hung>)>,
    /// As in [`Anchors`], for `equal` alone.
    equal_lengths: u64,
    /// By more than equality.
    more: Option<Finder<Hung>>,
}

/// A rule on its anchor.
#[derive(Clone, Copy, Debug)]
struct Hung {
    rule: u32,
    /// It asks for nothing but its anchor.
    surely: bool,
}

impl Index {
    /// The rules are numbered from 0, the entries of the lists from another number on: what is between them is found
    /// elsewhere.
    pub(super) fn new(
        rules: &[Rule],
        first_listed: usize,
        lists: &[Listed],
        priorities: &Priorities,
    ) -> Index {
        let mut index = Index {
            names: Names::default(),
            anchors: Vec::new(),
            always: Vec::new(),
            plans: Vec::new(),
            overrides: HashMap::new(),
            prioritize: Vec::new(),
        };
        let mut hanging: Vec<(u32, &[Condition])> = Vec::new();
        for (number, rule) in (0u32..).zip(rules) {
            let plan = index.plan(rule);
            // A disabled rule hangs nowhere: it is never judged.
            if rule.mode != Mode::Disabled {
                hanging.push((number, &rule.conditions));
            }
            index.plans.push(plan);
            let list = rule.overrides.iter().flat_map(|overrides| &overrides.list);
            let list: Vec<_> =
                list.map(|(conditions, number)| (index.conditions(conditions), *number)).collect();
            if !list.is_empty() {
                index.overrides.insert(number, list);
            }
        }
        index.plans.resize_with(first_listed.max(rules.len()), Plan::default);
        for listed in lists {
            // Their number is bounded with that of the rules.
            let number = u32::try_from(index.plans.len()).unwrap_or(u32::MAX);
            if listed.mode != Mode::Disabled {
                hanging.push((number, &listed.conditions));
            }
            let plan = index.conditions(&listed.conditions);
            index.plans.push(plan);
        }
        for entry in &priorities.prioritize {
            let plan = index.conditions(&entry.conditions);
            index.prioritize.push((plan, entry.priority));
        }
        index.hang(&hanging);
        index
    }

    /// Finds the enabled rules that match, in file order, and replaces what `matching` held by their numbers.
    #[inline(always)]
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
            #[allow(
                clippy::indexing_slicing,
                reason = "each name has its anchors: what hangs there would admit"
            )]
            let anchors = &self.anchors[attribute];
            candidates.take(&anchors.present);
            if anchors.lengths & length_bit(value) != 0 {
                let (lists, unsure) = anchors.by_value.take(value, candidates.rules);
                candidates.lists = candidates.lists.saturating_add(lists);
                candidates.unsure |= unsure;
            }
        }
        let Candidates { rules, lists, unsure } = candidates;
        if unsure {
            rules.retain(|rule| self.plan_of(*rule).matches(selection));
        }
        if lists > 1 {
            rules.sort_unstable();
            if lists >= REPEATED {
                rules.dedup();
            }
        }
    }

    /// The values of a matching rule's key, in the rule's order.
    pub(super) fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl ExactSizeIterator<Item = &'a str> + Clone + 's {
        // Present, for the rule matched.
        self.plan_of(rule).key.iter().map(|attribute| selection.value(*attribute).unwrap_or_default())
    }

    #[inline]
    #[allow(clippy::indexing_slicing, reason = "each rule and entry has its plan: it would admit without")]
    fn plan_of(&self, number: u32) -> &Plan {
        &self.plans[number as usize]
    }

    /// The number of the allowance of the first of a rule's overrides whose conditions hold.
    pub(super) fn override_of(&self, rule: u32, selection: &Selection<'_>) -> Option<u32> {
        let list = self.overrides.get(&rule)?;
        list.iter().find(|(plan, _)| plan.matches(selection)).map(|(_, number)| *number)
    }

    /// The place of the priority of the first entry of `prioritize` whose conditions hold.
    pub(super) fn priority_of(&self, selection: &Selection<'_>) -> Option<usize> {
        let found = self.prioritize.iter().find(|(plan, _)| plan.matches(selection));
        found.map(|(_, priority)| *priority)
    }

    /// A rule's plan. An attribute that is new has no anchors yet.
    fn plan(&mut self, rule: &Rule) -> Plan {
        Plan::new(&rule.conditions, &rule.key, |name| intern(name, &mut self.names, &mut self.anchors))
    }

    fn conditions(&mut self, conditions: &[Condition]) -> Plan {
        Plan::new(conditions, &[], |name| intern(name, &mut self.names, &mut self.anchors))
    }

    /// Hangs each on the rarest thing it asks for.
    #[allow(
        clippy::indexing_slicing,
        reason = "plans and anchors are there: a rule that hung nowhere would admit"
    )]
    fn hang(&mut self, rules: &[(u32, &[Condition])]) {
        let wanted: Vec<Wanted<'_>> = rules
            .iter()
            .map(|(rule, conditions)| Wanted::new(*rule, &self.plans[*rule as usize], conditions))
            .collect();
        let frequency = Frequency::of(&wanted);
        let mut more: Vec<Vec<(Anchor<'_>, Hung)>> = self.anchors.iter().map(|_| Vec::new()).collect();
        for Wanted { rule, plan, choices } in &wanted {
            let rarest =
                choices.iter().min_by_key(|(attribute, anchors)| frequency.of_anchors(*attribute, anchors));
            if let Some((attribute, anchors)) = rarest {
                let is_all = plan.conditions.len() == 1 && plan.asks_only_for(*attribute);
                for (anchor, surely) in anchors {
                    let hung = Hung { rule: *rule, surely: is_all && *surely };
                    match anchor {
                        Anchor::Equal(value, false) => self.anchors[*attribute].hang_on_value(value, hung),
                        _ => more[*attribute].push((*anchor, hung)),
                    }
                }
                continue;
            }
            let rarest = plan.needed().min_by_key(|attribute| frequency.of_presence(*attribute));
            let surely = plan.conditions.is_empty() && rarest.is_none_or(|rarest| plan.asks_only_for(rarest));
            match rarest {
                Some(attribute) => self.anchors[attribute].present.push(Hung { rule: *rule, surely }),
                None => self.always.push(Hung { rule: *rule, surely }),
            }
        }
        for (anchors, more) in self.anchors.iter_mut().zip(more).filter(|(_, more)| !more.is_empty()) {
            anchors.lengths = u64::MAX;
            anchors.by_value.more = Some(Finder::new(more));
        }
    }
}

fn intern(name: &str, names: &mut Names, anchors: &mut Vec<Anchors>) -> AttributeId {
    let attribute = names.intern(name);
    if attribute == anchors.len() {
        anchors.push(Anchors::default());
    }
    attribute
}

/// A rule that is to be hung, with all the conditions that it could hang on.
struct Wanted<'r> {
    rule: u32,
    plan: &'r Plan,
    choices: Vec<(AttributeId, Vec<(Anchor<'r>, bool)>)>,
}

impl<'r> Wanted<'r> {
    fn new(rule: u32, plan: &'r Plan, conditions: &'r [Condition]) -> Wanted<'r> {
        let choices = plan.conditions.iter().zip(conditions).filter(|(asked, _)| !asked.or_absent);
        let choices = choices.filter_map(|(asked, condition)| {
            let mut anchors: Vec<_> = condition.any_of.iter().map(Anchor::of).collect::<Option<_>>()?;
            // Of two on one place the one that is sure goes before.
            anchors.sort_unstable_by_key(|(anchor, surely)| (*anchor, !surely));
            anchors.dedup_by_key(|(anchor, _)| *anchor);
            Some((asked.attribute, anchors))
        });
        Wanted { rule, plan, choices: choices.collect() }
    }
}

/// Rules that may match.
struct Candidates<'m> {
    rules: &'m mut Vec<u32>,
    /// Lists that they came from: more than one, and they are out of order. From [`REPEATED`] on, one may have come
    /// twice.
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
        self.lists = self.lists.saturating_add(1);
        for Hung { rule, surely } in hung {
            self.rules.push(*rule);
            self.unsure |= !surely;
        }
    }
}

impl Anchors {
    fn hang_on_value(&mut self, value: &str, hung: Hung) {
        let ByValue { equal, equal_lengths, .. } = &mut *self.by_value;
        self.lengths |= length_bit(value);
        *equal_lengths |= length_bit(value);
        let entry = equal.entry(hash(value), |(known, _)| **known == *value, |(known, _)| hash(known));
        entry.or_insert_with(|| (value.into(), Vec::new())).into_mut().1.push(hung);
    }
}

impl ByValue {
    /// Adds the rules that hang on a value; returns how many lists they came from and whether some ask for more.
    /// Most requests come with no value that a rule hangs on: this is not in their way.
    #[inline(never)]
    fn take(&self, value: &str, rules: &mut Vec<u32>) -> (u32, bool) {
        let mut candidates = Candidates { rules, lists: 0, unsure: false };
        if self.equal_lengths & length_bit(value) != 0 {
            let found = self.equal.find(hash(value), |(known, _)| **known == *value);
            candidates.take(found.map_or(&[], |(_, rules)| rules));
        }
        if let Some(more) = &self.more {
            more.any(value, |hung| {
                candidates.take(hung);
                candidates.lists |= REPEATED;
                false
            });
        }
        (candidates.lists, candidates.unsure)
    }
}

/// How many rules ask for what: the rarest anchor keeps the lists short.
struct Frequency<'r> {
    anchors: HashMap<(AttributeId, Anchor<'r>), usize>,
    presence: HashMap<AttributeId, usize>,
}

impl<'r> Frequency<'r> {
    fn of(wanted: &[Wanted<'r>]) -> Frequency<'r> {
        let mut frequency = Frequency { anchors: HashMap::new(), presence: HashMap::new() };
        for Wanted { plan, choices, .. } in wanted {
            for (attribute, anchors) in choices {
                for (anchor, _) in anchors {
                    *frequency.anchors.entry((*attribute, *anchor)).or_default() += 1;
                }
            }
            for attribute in plan.needed() {
                *frequency.presence.entry(attribute).or_default() += 1;
            }
        }
        frequency
    }

    fn of_anchors(&self, attribute: AttributeId, anchors: &[(Anchor<'r>, bool)]) -> usize {
        anchors.iter().filter_map(|(anchor, _)| self.anchors.get(&(attribute, *anchor))).sum()
    }

    fn of_presence(&self, attribute: AttributeId) -> usize {
        self.presence.get(&attribute).copied().unwrap_or_default()
    }
}

#[inline]
fn length_bit(value: &str) -> u64 {
    1 << value.len().min(63)
}

/// Far more lists than a request can come to.
const REPEATED: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::Index;
    use crate::rules::{Condition, ListKind, Listed, Mode, Pattern, Position, Priorities, Selection};

    #[test]
    fn lists_are_numbered_from_where_they_are_told_to_be() {
        let listed = |value: &str| Listed {
            name: value.into(),
            position: Position { file: "rules.yaml".into(), line: 1, column: 1 },
            kind: ListKind::Deny,
            conditions: vec![Condition::new("user", vec![Pattern::parse(value)])],
            mode: Mode::Enforce,
            help: None,
        };
        let index = Index::new(&[], 5, &[listed("a*"), listed("ab")], &Priorities::default());
        let (mut selection, mut matching) = (Selection::default(), Vec::new());
        index.select(&[("user", "ab")], &mut selection, &mut matching);
        assert_eq!(matching, [5, 6]);
    }
}
