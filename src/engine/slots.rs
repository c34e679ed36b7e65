//! Where rules and priorities stand in every thread's arrays of counts, by name: also after a reload.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::control::RuleName;
use super::ruling::Ruling;
use super::totals::RuleTotals;

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

/// The slots of rules.
#[derive(Debug, Default)]
pub(super) struct RuleSlots {
    places: HashMap<RuleName, usize>,
    /// By place.
    holders: Vec<Holder>,
    /// Counts the rulings: the one that is being made, or the last that was.
    ruling: u64,
    /// Rulings that somebody may still look at, by their count.
    in_use: Vec<(u64, Weak<Ruling>)>,
    /// Places that may be given away, the one that was left first at the end.
    free: Vec<usize>,
    given: Vec<Given>,
}

/// Who has a place.
#[derive(Debug)]
struct Holder {
    name: RuleName,
    /// The first ruling in which it had this place, and the last.
    since: u64,
    until: u64,
}

/// A slot that has a new name.
#[derive(Debug)]
pub(in crate::engine) struct Given {
    pub(in crate::engine) slot: Slot,
    /// Whose it is.
    pub(in crate::engine) name: RuleName,
    /// Whose it was.
    pub(in crate::engine) before: Option<RuleName>,
}

impl RuleSlots {
    /// Another ruling is to be made.
    pub(super) fn begin(&mut self) {
        self.ruling += 1;
        self.in_use.retain(|(_, ruling)| ruling.strong_count() > 0);
        // What was counted under a ruling that is gone is seen by who now looks at its counters.
        fence(Ordering::Acquire);
        let is_counted_at = |holder: &Holder| {
            self.in_use.iter().any(|(ruling, _)| (holder.since..=holder.until).contains(ruling))
        };
        let holders = self.holders.iter().enumerate();
        self.free = holders.filter(|(_, holder)| !is_counted_at(holder)).map(|(place, _)| place).collect();
        let until = |place: &usize| self.holders.get(*place).map(|holder| holder.until);
        self.free.sort_by_key(|place| std::cmp::Reverse(until(place)));
    }

    /// It is made: what it counts under is not given away as long as somebody looks at it.
    pub(super) fn made(&mut self, ruling: &Arc<Ruling>) {
        self.in_use.push((self.ruling, Arc::downgrade(ruling)));
    }

    /// The slots that have had a new name since this was last asked.
    pub(super) fn take_given(&mut self) -> Vec<Given> {
        std::mem::take(&mut self.given)
    }

    /// The slot of a rule of the ruling that is being made.
    pub(super) fn of(&mut self, domain: &str, rule: &str) -> Slot {
        let name = RuleName { domain: domain.into(), rule: rule.into() };
        let Some(place) = self.places.get(&name).copied() else { return self.give(name) };
        if let Some(holder) = self.holders.get_mut(place) {
            holder.until = self.ruling;
        }
        Slot(place)
    }

    /// The slot of a rule, if it has one.
    pub(super) fn find(&self, domain: &str, rule: &str) -> Option<Slot> {
        let name = RuleName { domain: domain.into(), rule: rule.into() };
        self.places.get(&name).copied().map(Slot)
    }

    /// Every rule that has one.
    pub(super) fn each(&self) -> impl Iterator<Item = (&str, &str, Slot)> {
        let holders = self.holders.iter().enumerate();
        holders.map(|(place, holder)| (&*holder.name.domain, &*holder.name.rule, Slot(place)))
    }

    fn give(&mut self, name: RuleName) -> Slot {
        let Some(place) = self.place() else { return Slot(OTHER_RULES) };
        let holder = Holder { name: name.clone(), since: self.ruling, until: self.ruling };
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
        self.given.push(Given { slot: Slot(place), name, before });
        Slot(place)
    }

    /// A place that nobody has, else one that was left.
    fn place(&mut self) -> Option<usize> {
        if self.holders.len() < NAMED_RULES_MAX {
            return Some(self.holders.len());
        }
        while let Some(place) = self.free.pop() {
            // Its rule may have come back since, with this ruling.
            if self.holders.get(place).is_some_and(|holder| holder.until < self.ruling) {
                return Some(place);
            }
        }
        None
    }
}

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
