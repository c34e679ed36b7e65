//! Where rules and priorities stand in every thread's arrays of counts, by name: also after a reload.

mod rules;

use std::collections::HashMap;
use std::sync::Arc;

use super::ruling::Ruling;
use super::totals::RuleTotals;
pub(super) use rules::Given;
use rules::RuleSlots;

/// Where the counts of a rule stand, or those of what names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

/// Where the counts of a priority stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrioritySlot(usize);

impl Slot {
    /// For what belongs to no domain: nobody has rules for it.
    pub(super) const NOBODY: Slot = Slot(RULE_SLOTS + NAMED_DOMAINS_MAX);

    /// Its place, below [`EVERY_SLOT`]; that of a rule below [`RULE_SLOTS`].
    pub(super) fn number(self) -> usize {
        self.0
    }
}

impl PrioritySlot {
    /// Its place, below [`PRIORITY_SLOTS`].
    pub(super) fn number(self) -> usize {
        self.0
    }
}

/// Gives each rule, domain and priority its slot, by name. Those past the bound share one; rules take the slots of those
/// that are gone, and what was counted there goes to the shared one.
#[derive(Debug, Default)]
pub(super) struct Slots {
    rules: RuleSlots,
    /// What was counted at rules whose slots others have now.
    gone: RuleTotals,
    domains: Names<Box<str>>,
    priorities: Names<Box<str>>,
}

/// Names in the order in which they were first seen.
#[derive(Debug)]
struct Names<N> {
    places: HashMap<N, usize>,
    names: Vec<N>,
}

impl<N> Default for Names<N> {
    fn default() -> Names<N> {
        Names { places: HashMap::new(), names: Vec::new() }
    }
}

impl<N: Clone + Eq + std::hash::Hash> Names<N> {
    /// The place of a name, of at most so many.
    fn of(&mut self, name: N, most: usize) -> Option<usize> {
        if let Some(place) = self.places.get(&name) {
            return Some(*place);
        }
        let place = self.names.len();
        if place == most {
            return None;
        }
        self.names.push(name.clone());
        self.places.insert(name, place);
        Some(place)
    }
}

impl Slots {
    /// Another ruling is to be made: [`Slots::of`] is asked for all that it counts.
    pub(super) fn begin(&mut self) {
        self.rules.begin();
    }

    /// It is made, and not yet in force. Returns the slots that have a new name.
    pub(super) fn made(&mut self, ruling: &Arc<Ruling>) -> Vec<Given> {
        self.rules.made(ruling);
        self.rules.take_given()
    }

    /// Keeps what was counted at a rule that has no slot any more.
    pub(super) fn keep(&mut self, counted: &RuleTotals) {
        self.gone.add(counted);
    }

    /// What was counted at all rules that have none any more.
    pub(super) fn gone(&self) -> &RuleTotals {
        &self.gone
    }

    /// The slot of a rule, if it has one of its own.
    pub(super) fn find(&self, domain: &str, rule: &str) -> Option<Slot> {
        self.rules.find(domain, rule)
    }

    /// The slot of a rule of the ruling that is being made.
    pub(super) fn of(&mut self, domain: &str, rule: &str) -> Slot {
        self.rules.of(domain, rule)
    }

    /// That of a domain's decisions that name no rule.
    pub(super) fn of_domain(&mut self, domain: &str) -> Slot {
        let place = self.domains.of(domain.into(), NAMED_DOMAINS_MAX);
        place.map_or(Slot(OTHER_RULES), |place| Slot(RULE_SLOTS + place))
    }

    pub(super) fn of_priority(&mut self, name: &str) -> PrioritySlot {
        PrioritySlot(self.priorities.of(name.into(), NAMED_PRIORITIES_MAX).unwrap_or(NAMED_PRIORITIES_MAX))
    }

    /// Every rule with its slot, and the slot of all the others, by domain and rule.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&str, &str, Slot)> {
        self.rules.each().chain([("", OTHER, Slot(OTHER_RULES))])
    }

    /// Every domain with the slot of what names no rule, and that of what belongs to none.
    pub(super) fn domains(&self) -> impl Iterator<Item = (&str, Slot)> {
        let named = self.domains.names.iter().enumerate();
        let named = named.map(|(place, domain)| (&**domain, Slot(RULE_SLOTS + place)));
        named.chain([("", Slot::NOBODY)])
    }

    /// Every priority, and the slot of all the others.
    pub(super) fn priorities(&self) -> impl Iterator<Item = (&str, PrioritySlot)> {
        let named = self.priorities.names.iter().enumerate();
        let named = named.map(|(place, name)| (&**name, PrioritySlot(place)));
        named.chain([(OTHER, PrioritySlot(NAMED_PRIORITIES_MAX))])
    }
}

/// What is not counted by name.
const OTHER: &str = "other";

/// Rules that are counted by name: more would make a scrape larger than anybody reads.
const NAMED_RULES_MAX: usize = 512;

const OTHER_RULES: usize = NAMED_RULES_MAX;

/// One for each named rule and one for the rest.
pub(super) const RULE_SLOTS: usize = NAMED_RULES_MAX + 1;

/// Domains whose decisions without a rule are counted by name: a host serves a few applications.
const NAMED_DOMAINS_MAX: usize = 64;

/// Those of rules, of domains, and of what belongs to none.
pub(super) const EVERY_SLOT: usize = RULE_SLOTS + NAMED_DOMAINS_MAX + 1;

/// Priorities that are counted by name: a domain has a handful, and most domains the same.
const NAMED_PRIORITIES_MAX: usize = 64;

/// One for each named priority and one for the rest.
pub(super) const PRIORITY_SLOTS: usize = NAMED_PRIORITIES_MAX + 1;

#[cfg(test)]
mod tests {
    use super::{NAMED_DOMAINS_MAX, NAMED_RULES_MAX, OTHER_RULES, Slot, Slots};

    #[test]
    fn names_past_the_bound_share_one_slot_that_is_nobody_elses() {
        let mut slots = Slots::default();
        let first = slots.of("api", "a");
        assert_eq!(first, slots.of("api", "a"));
        for number in 0..2 * NAMED_RULES_MAX {
            slots.of("api", &number.to_string());
        }
        assert_eq!(slots.of("api", "one more"), Slot(OTHER_RULES));
        assert_eq!(slots.of("api", "a"), first, "it keeps its own");
        for number in 0..2 * NAMED_DOMAINS_MAX {
            slots.of_domain(&number.to_string());
        }
        let mut every: Vec<usize> = slots.rules().map(|(_, _, slot)| slot.number()).collect();
        every.extend(slots.domains().map(|(_, slot)| slot.number()));
        assert_eq!(every, (0..super::EVERY_SLOT).collect::<Vec<_>>());
    }
}
