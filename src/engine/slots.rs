//! Slots of rules and priorities in every thread's counter arrays, by name and stable over reloads.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::control::RuleName;
use super::counters::RuleTotals;
use super::rule_set::CompiledRuleSet;

/// The counters of a rule, of decisions that name none, or, in an array of its own, of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

impl Slot {
    /// For decisions of no configured domain.
    pub(super) const UNATTRIBUTED: Slot = Slot(RULE_SLOTS + NAMED_DOMAINS_MAX);

    /// Its index, below [`EVERY_SLOT`]; that of a rule is below [`RULE_SLOTS`], of a priority below
    /// [`PRIORITY_SLOTS`].
    pub(super) fn number(self) -> usize {
        self.0
    }
}

/// Assigns a slot to each rule, domain and priority, by name. Names past the bound share one. New rules reuse
/// slots of removed ones, whose counts move to the shared slot.
#[derive(Debug, Default)]
pub(super) struct Slots {
    places: HashMap<RuleName, usize>,
    holders: Vec<SlotRule>,
    /// The number of the rule set being compiled, or of the last one.
    rule_set_number: u64,
    /// Rule sets that a thread may still use, with their numbers.
    in_use: Vec<(u64, Weak<CompiledRuleSet>)>,
    given: Vec<NewSlot>,
    /// The counts of rules whose slots were reused.
    pub(super) removed: RuleTotals,
    domains: Vec<Box<str>>,
    priorities: Vec<Box<str>>,
}

#[derive(Debug)]
struct SlotRule {
    name: RuleName,
    /// The numbers of the first and the last rule set in which it had this slot.
    since: u64,
    until: u64,
}

#[derive(Debug)]
pub(in crate::engine) struct NewSlot {
    pub(in crate::engine) slot: Slot,
    pub(in crate::engine) name: RuleName,
    pub(in crate::engine) before: Option<RuleName>,
}

impl Slots {
    /// Begins the compilation of a rule set, which calls [`Slots::rule_slot`] for all its rules.
    pub(super) fn begin_rule_set(&mut self) {
        self.rule_set_number += 1;
        self.in_use.retain(|(_, rule_set)| rule_set.strong_count() > 0);
        // Counts made under dropped rule sets are visible to readers from here on.
        fence(Ordering::Acquire);
    }

    /// Ends the compilation, before the rule set is in force: its slots are not reused while it is in use.
    /// Returns the slots with a new name.
    pub(super) fn finish_rule_set(&mut self, rule_set: &Arc<CompiledRuleSet>) -> Vec<NewSlot> {
        self.in_use.push((self.rule_set_number, Arc::downgrade(rule_set)));
        std::mem::take(&mut self.given)
    }

    pub(super) fn find(&self, domain: &str, rule: &str) -> Option<Slot> {
        let name = RuleName { domain: domain.into(), rule: rule.into() };
        self.places.get(&name).copied().map(Slot)
    }

    pub(super) fn rule_slot(&mut self, domain: &str, rule: &str) -> Slot {
        let name = RuleName { domain: domain.into(), rule: rule.into() };
        let Some(place) = self.places.get(&name).copied() else { return self.assign_slot(name) };
        if let Some(holder) = self.holders.get_mut(place) {
            holder.until = self.rule_set_number;
        }
        Slot(place)
    }

    /// Returns the slot of a domain's decisions that name no rule.
    pub(super) fn domain_slot(&mut self, domain: &str) -> Slot {
        let place = find_or_assign(&mut self.domains, domain, NAMED_DOMAINS_MAX);
        place.map_or(Slot(OTHER_RULES), |place| Slot(RULE_SLOTS + place))
    }

    pub(super) fn priority_slot(&mut self, name: &str) -> Slot {
        let place = find_or_assign(&mut self.priorities, name, NAMED_PRIORITIES_MAX);
        Slot(place.unwrap_or(NAMED_PRIORITIES_MAX))
    }

    /// Every rule by domain and name with its slot, and the shared slot.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&str, &str, Slot)> {
        let holders = self.holders.iter().enumerate();
        let named = holders.map(|(place, holder)| (&*holder.name.domain, &*holder.name.rule, Slot(place)));
        named.chain([("", OTHER, Slot(OTHER_RULES))])
    }

    /// Every domain with the slot of its decisions that name no rule, and the slot for no domain.
    pub(super) fn domains(&self) -> impl Iterator<Item = (&str, Slot)> {
        let named = self.domains.iter().enumerate();
        let named = named.map(|(place, domain)| (&**domain, Slot(RULE_SLOTS + place)));
        named.chain([("", Slot::UNATTRIBUTED)])
    }

    pub(super) fn priorities(&self) -> impl Iterator<Item = (&str, Slot)> {
        let named = self.priorities.iter().enumerate().map(|(place, name)| (&**name, Slot(place)));
        named.chain([(OTHER, Slot(NAMED_PRIORITIES_MAX))])
    }

    fn assign_slot(&mut self, name: RuleName) -> Slot {
        let Some(place) = self.find_free_slot() else { return Slot(OTHER_RULES) };
        let holder =
            SlotRule { name: name.clone(), since: self.rule_set_number, until: self.rule_set_number };
        let before = match self.holders.get_mut(place) {
            Some(old) => Some(std::mem::replace(old, holder).name),
            None => {
                self.holders.push(holder);
                None
            }
        };
        if let Some(before) = &before {
            self.places.remove(before);
        }
        self.places.insert(name.clone(), place);
        self.given.push(NewSlot { slot: Slot(place), name, before });
        Slot(place)
    }

    /// Returns an unused slot, or that of the rule that was removed longest ago and is counted by no thread.
    fn find_free_slot(&self) -> Option<usize> {
        if self.holders.len() < NAMED_RULES_MAX {
            return Some(self.holders.len());
        }
        let is_free = |holder: &SlotRule| {
            let mut in_use = self.in_use.iter().map(|(number, _)| number).chain([&self.rule_set_number]);
            !in_use.any(|number| (holder.since..=holder.until).contains(number))
        };
        let free = self.holders.iter().enumerate().filter(|(_, holder)| is_free(holder));
        free.min_by_key(|(_, holder)| holder.until).map(|(place, _)| place)
    }
}

/// Returns the index of a name, in the order of first use; `None`: it is new, and there are `most` names.
pub(super) fn find_or_assign(names: &mut Vec<Box<str>>, name: &str, most: usize) -> Option<usize> {
    let known = names.iter().position(|known| **known == *name);
    known.or_else(|| {
        (names.len() < most).then(|| {
            names.push(name.into());
            names.len() - 1
        })
    })
}

const OTHER: &str = "other";

/// Maximum rules counted by name, to bound the size of a scrape.
const NAMED_RULES_MAX: usize = 512;

const OTHER_RULES: usize = NAMED_RULES_MAX;

/// One for each named rule and a shared one.
pub(super) const RULE_SLOTS: usize = NAMED_RULES_MAX + 1;

/// Maximum domains counted by name: a host serves a few applications.
const NAMED_DOMAINS_MAX: usize = 64;

/// Slots of rules, of domains, and of no domain.
pub(super) const EVERY_SLOT: usize = RULE_SLOTS + NAMED_DOMAINS_MAX + 1;

/// Maximum priorities counted by name: a domain has a handful, and most domains use the same.
const NAMED_PRIORITIES_MAX: usize = 64;

pub(super) const PRIORITY_SLOTS: usize = NAMED_PRIORITIES_MAX + 1;
