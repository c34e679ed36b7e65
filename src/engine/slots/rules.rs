//! Which slot each rule has, by name: also after a reload, and as long as nobody needs the place of one that is gone.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::{NAMED_RULES_MAX, OTHER_RULES, Slot};
use crate::engine::control::RuleName;
use crate::engine::ruling::Ruling;

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
