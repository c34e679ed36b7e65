//! Costs and amounts by unit, as the engine asks for them, in the bytes of a frame.

use std::cell::RefCell;
use std::fmt;

use arrayvec::ArrayVec;

use crate::engine::{self, UnitAmounts, UnitCosts};
use crate::protocol::{self, Amounts, COST_MAX, Entries, Entry, Units};

/// A cost for the engine, and whether it is above what rules can count.
pub fn engine_cost<'c>(cost: &'c protocol::Cost<'_>) -> (engine::Cost<'c>, bool) {
    match cost {
        protocol::Cost::Requests(cost) => (engine::Cost::Requests(counted(*cost)), is_oversized(*cost)),
        protocol::Cost::Units(named) => {
            (engine::Cost::Units(named), named.iter().any(|(_, cost)| is_oversized(cost)))
        }
    }
}

/// The cost as rules count it.
fn counted(cost: u64) -> u32 {
    u32::try_from(cost).unwrap_or(COST_MAX)
}

/// Whether a cost is above what rules can count.
fn is_oversized(cost: u64) -> bool {
    cost > u64::from(COST_MAX)
}

impl UnitCosts for Units<'_> {
    fn of(&self, unit: &str) -> Option<u32> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, cost)| counted(cost))
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u32)) {
        self.iter().for_each(|(unit, cost)| visit(unit, counted(cost)));
    }
}

impl UnitAmounts for Amounts<'_> {
    fn of(&self, unit: &str) -> Option<i64> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, amount)| amount)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.iter().for_each(|(unit, amount)| visit(unit, amount));
    }
}

/// A long list of units, read once for each unit that rules name. The engine asks once for each rule that matches, and a
/// frame has room for 4 000 units.
pub(super) struct LongUnits<'a, N> {
    entries: Entries<'a, (&'a str, N)>,
    asked: RefCell<ArrayVec<(Box<str>, Option<N>), ASKED_MAX>>,
}

impl<'a, N: Copy> LongUnits<'a, N>
where
    (&'a str, N): Entry<'a>,
{
    /// The list, if it is long.
    pub(super) fn new(entries: Entries<'a, (&'a str, N)>) -> Option<LongUnits<'a, N>> {
        let is_long = entries.iter().nth(SHORT_MAX).is_some();
        is_long.then(|| LongUnits { entries, asked: RefCell::default() })
    }

    fn find(&self, unit: &str) -> Option<N> {
        let mut asked = self.asked.borrow_mut();
        if let Some((_, found)) = asked.iter().find(|(known, _)| **known == *unit) {
            return *found;
        }
        let found = self.entries.iter().find(|(name, _)| *name == unit).map(|(_, number)| number);
        // Rules that count in still other units cost a pass each.
        let _ = asked.try_push((unit.into(), found));
        found
    }
}

impl UnitCosts for LongUnits<'_, u64> {
    fn of(&self, unit: &str) -> Option<u32> {
        self.find(unit).map(counted)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u32)) {
        self.entries.each(visit);
    }
}

impl UnitAmounts for LongUnits<'_, i64> {
    fn of(&self, unit: &str) -> Option<i64> {
        self.find(unit)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.entries.each(visit);
    }
}

impl<N> fmt::Debug for LongUnits<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongUnits").finish_non_exhaustive()
    }
}

/// A list up to this length is read again each time: that is quicker than to remember.
const SHORT_MAX: usize = 8;

/// Units whose cost is remembered. The rules of a host rarely count in more.
const ASKED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::{ASKED_MAX, LongUnits, SHORT_MAX};
    use crate::engine::UnitCosts;
    use crate::protocol::Entries;

    #[test]
    fn reads_a_long_list_once_for_each_unit() {
        let names: Vec<String> = (0..100).map(|number| format!("u{number}")).collect();
        let costs: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(0..).collect();
        assert!(LongUnits::new(Entries::from(&costs[..SHORT_MAX])).is_none());
        let long = LongUnits::new(Entries::from(&*costs)).unwrap();
        for asked in 1..=2 * ASKED_MAX {
            // Those before it are remembered, and it is none of them.
            let number = u32::try_from(asked - 1).unwrap();
            for _ in 0..3 {
                assert_eq!(
                    (long.of(&format!("u{number}")), long.of("u99"), long.of("none")),
                    (Some(number), Some(99), None)
                );
            }
            assert_eq!(long.asked.borrow().len(), (asked + 2).min(ASKED_MAX));
        }
    }
}
