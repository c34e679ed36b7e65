//! Costs and amounts by unit, read from a frame for the engine.

use std::cell::RefCell;
use std::fmt;

use arrayvec::ArrayVec;

use crate::engine::{self, UnitNumbers};
use crate::protocol::{self, COST_MAX, ReplyEntry, WireList};

/// Converts a cost for the engine. Returns also whether it is above the largest cost that rules can count.
pub fn to_engine_cost<'c>(cost: &'c protocol::CostField<'_>) -> (engine::Cost<'c>, bool) {
    match cost {
        protocol::CostField::Requests(cost) => (engine::Cost::Requests(cost.counted()), is_oversized(*cost)),
        protocol::CostField::Units(named) => {
            (engine::Cost::Units(named), named.iter().any(|(_, cost)| is_oversized(cost)))
        }
    }
}

/// Whether a cost is above the largest that rules can count.
fn is_oversized(cost: u64) -> bool {
    cost > u64::from(COST_MAX)
}

/// A number in a frame, as the engine counts it.
pub trait UnitNumber: Copy {
    /// The type of the engine.
    type Of;

    /// Converts to the type of the engine.
    fn counted(self) -> Self::Of;
}

impl UnitNumber for u64 {
    type Of = u32;

    /// Converts to the largest cost that rules can count, saturating.
    fn counted(self) -> u32 {
        u32::try_from(self).unwrap_or(COST_MAX)
    }
}

impl UnitNumber for i64 {
    type Of = i64;

    fn counted(self) -> i64 {
        self
    }
}

impl<'a, N: UnitNumber> UnitNumbers<N::Of> for WireList<'a, (&'a str, N)>
where
    (&'a str, N): ReplyEntry<'a>,
{
    fn find(&self, unit: &str) -> Option<N::Of> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, number)| number.counted())
    }

    fn each(&self, visit: &mut dyn FnMut(&str, N::Of)) {
        self.iter().for_each(|(unit, number)| visit(unit, number.counted()));
    }
}

/// A long list of units with a cache of lookups: the engine looks a unit up for each matching rule, and a frame has room
/// for 4 000 units.
pub(super) struct LongUnits<'a, N> {
    entries: WireList<'a, (&'a str, N)>,
    cache: RefCell<ArrayVec<(Box<str>, Option<N>), CACHED_MAX>>,
}

impl<'a, N: Copy> LongUnits<'a, N>
where
    (&'a str, N): ReplyEntry<'a>,
{
    /// Wraps a list; `None` if it is short.
    pub(super) fn new(entries: WireList<'a, (&'a str, N)>) -> Option<LongUnits<'a, N>> {
        let is_long = entries.iter().nth(SHORT_MAX).is_some();
        is_long.then(|| LongUnits { entries, cache: RefCell::default() })
    }
}

impl<'a, N: UnitNumber> UnitNumbers<N::Of> for LongUnits<'a, N>
where
    (&'a str, N): ReplyEntry<'a>,
{
    fn find(&self, unit: &str) -> Option<N::Of> {
        let mut cache = self.cache.borrow_mut();
        let cached = cache.iter().find(|(known, _)| **known == *unit).map(|(_, found)| *found);
        let found = cached.unwrap_or_else(|| {
            let found = self.entries.iter().find(|(name, _)| *name == unit).map(|(_, number)| number);
            // Lookups of further units are not cached.
            let _ = cache.try_push((unit.into(), found));
            found
        });
        found.map(N::counted)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, N::Of)) {
        self.entries.each(visit);
    }
}

impl<N> fmt::Debug for LongUnits<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongUnits").finish_non_exhaustive()
    }
}

/// The longest list for which a scan is faster than the cache.
const SHORT_MAX: usize = 8;

/// The units in the cache. The rules of a host rarely count in more.
const CACHED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::{CACHED_MAX, LongUnits, SHORT_MAX};
    use crate::engine::UnitNumbers;
    use crate::protocol::WireList;

    #[test]
    fn caches_lookups_in_long_list() {
        let names: Vec<String> = (0..100).map(|number| format!("u{number}")).collect();
        let costs: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(0..).collect();
        assert!(LongUnits::new(WireList::from(&costs[..SHORT_MAX])).is_none());
        let long = LongUnits::new(WireList::from(&*costs)).unwrap();
        for looked_up in 1..=2 * CACHED_MAX {
            // The units before it are cached, and it is not.
            let number = u32::try_from(looked_up - 1).unwrap();
            for _ in 0..3 {
                assert_eq!(
                    (long.find(&format!("u{number}")), long.find("u99"), long.find("none")),
                    (Some(number), Some(99), None)
                );
            }
            assert_eq!(long.cache.borrow().len(), (looked_up + 2).min(CACHED_MAX));
        }
    }
}
