//! What the application asks about.

use std::fmt;

/// One piece of work to be judged. Everything is borrowed from the frame it came in.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is asked.
    pub op: Op,
    /// The domain whose rules apply.
    pub domain: &'a str,
    /// The attributes of all descriptors, in order. The first value of a name wins, an empty one is absent.
    pub attributes: &'a [(&'a str, &'a str)],
    /// What it costs.
    pub cost: Cost<'a>,
    /// Whether every limit that matched is to be listed.
    pub all: bool,
}

/// What is asked about a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Work without an end: charged when it is allowed.
    Hit,
    /// Judged the same; nothing changes, nothing is created, nothing is counted.
    Peek,
}

/// What a piece of work costs, in one or more units.
#[derive(Clone, Copy, Debug)]
pub enum Cost<'a> {
    /// In requests alone.
    Requests(u32),
    /// By unit. A rule whose unit is not named is not judged.
    Units(&'a dyn UnitCosts),
}

/// Costs by unit, wherever they stand: the engine asks for the units of its rules, so the caller copies nothing.
pub trait UnitCosts: fmt::Debug {
    /// The cost in one unit, if it is named.
    fn of(&self, unit: &str) -> Option<u32>;
}

impl UnitCosts for &[(&str, u32)] {
    fn of(&self, unit: &str) -> Option<u32> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, cost)| *cost)
    }
}

impl UnitCosts for Vec<(&str, u32)> {
    fn of(&self, unit: &str) -> Option<u32> {
        self.as_slice().of(unit)
    }
}

impl Cost<'_> {
    /// The cost in one unit, if it is named.
    #[inline]
    #[must_use]
    pub fn in_unit(&self, unit: &str) -> Option<u32> {
        match self {
            Cost::Requests(cost) => (unit == UNIT_REQUESTS).then_some(*cost),
            Cost::Units(units) => units.of(unit),
        }
    }
}

/// The unit that is meant where none is named.
pub const UNIT_REQUESTS: &str = "requests";
