//! What the application asks about.

use std::fmt;

use super::leases::Session;
use crate::clock::Micros;

/// One piece of work to be judged. Everything is borrowed from the frame it came in.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is asked.
    pub op: Op,
    /// The domain whose rules apply.
    pub domain: &'a str,
    /// What it is about.
    pub descriptors: Descriptors<'a>,
    /// What it costs.
    pub cost: Cost<'a>,
    /// Whether a cost, here cut to the largest number, is above it: then the request is refused for good.
    pub oversized: bool,
    /// The caller's word for how important it is.
    pub priority: Option<&'a str>,
    /// The longest wait that is acceptable; zero: none, `None`: as long as the rule's queue.
    pub wait_max: Option<Micros>,
    /// What makes it a repeat of another, if the caller says so.
    pub repeat: Option<Repeat<'a>>,
    /// Who asks. Without a session work has no lease, and no pool is full.
    pub session: Option<&'a Session>,
    /// What the session knows the request by.
    pub id: u64,
    /// How long it waited for the application already.
    pub queued: Option<Micros>,
    /// Whether every limit that matched is to be listed.
    pub all: bool,
    /// Whether whoever asks can wait for a call, should a rule say so.
    pub may_wait: bool,
}

impl<'a> Request<'a> {
    /// A request of cost 1 that asks for nothing special.
    #[must_use]
    pub fn new(op: Op, domain: &'a str, descriptors: Descriptors<'a>) -> Request<'a> {
        Request {
            op,
            domain,
            descriptors,
            cost: Cost::Requests(1),
            oversized: false,
            priority: None,
            wait_max: None,
            repeat: None,
            session: None,
            id: 0,
            queued: None,
            all: false,
            may_wait: false,
        }
    }
}

/// Lists of attributes, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// The attributes of all descriptors, in order. Of a name that comes twice rules see the first value; an empty
    /// one is absent.
    pub attributes: &'a [(&'a str, &'a str)],
    /// Where in `attributes` each descriptor ends.
    pub ends: &'a [u8],
}

impl<'a> Descriptors<'a> {
    /// A single descriptor, for whoever has no tree to ask.
    #[must_use]
    pub fn one(attributes: &'a [(&'a str, &'a str)]) -> Descriptors<'a> {
        Descriptors { attributes, ends: &[] }
    }

    /// Each descriptor as its attributes.
    pub fn iter(&self) -> impl Iterator<Item = &'a [(&'a str, &'a str)]> + use<'a> {
        let (attributes, mut start) = (self.attributes, 0);
        let whole = if self.ends.is_empty() { Some(attributes) } else { None };
        whole.into_iter().chain(self.ends.iter().map(move |end| {
            let end = usize::from(*end);
            // Read as an empty one, no node of a tree would count it.
            let descriptor = attributes.get(std::mem::replace(&mut start, end)..end);
            descriptor.unwrap_or_else(|| unreachable!("a descriptor ends among the attributes"))
        }))
    }
}

/// Who asks, and by what name it knows its request: the same name again gets the same grant again.
#[derive(Clone, Copy, Debug)]
pub struct Repeat<'a> {
    /// The session, or the connection where there is none.
    pub session: &'a [u8],
    /// The user that it belongs to.
    pub user: u32,
    /// The request's name, 1 to 64 bytes.
    pub name: &'a [u8],
}

/// What a piece of work turned out to cost, after the fact.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The domain whose rules are charged.
    pub domain: &'a str,
    /// What it is about.
    pub descriptors: Descriptors<'a>,
    /// How much; a negative amount is given back.
    pub amount: Amount<'a>,
    /// What makes it a repeat of another, if the caller says so.
    pub repeat: Option<Repeat<'a>>,
    /// What a negative amount refunds; `None`: nothing is named.
    pub of: Option<RefundBy<'a>>,
    /// Whether a negative amount needs no name.
    pub trusted: bool,
}

/// What a refund names, and the user who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundBy<'a> {
    /// The user whose grant or charge it must be.
    pub user: u32,
    /// Its name.
    pub of: Of<'a>,
}

/// A grant or charge, as a refund names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of<'a> {
    /// By its `idem`.
    Idem(&'a [u8]),
    /// By its lease.
    Lease(u64),
}

/// An amount in one or more units, within ± 2³².
#[derive(Clone, Copy, Debug)]
pub enum Amount<'a> {
    /// In requests alone.
    Requests(i64),
    /// By unit. A rule whose unit is not named is not charged.
    Units(&'a dyn UnitAmounts),
}

/// Amounts by unit, wherever they stand.
pub trait UnitAmounts: fmt::Debug {
    /// The amount in one unit, if it is named.
    fn of(&self, unit: &str) -> Option<i64>;

    /// Visits each unit that is named and its amount.
    fn each(&self, visit: &mut dyn FnMut(&str, i64));
}

impl UnitAmounts for Vec<(&str, i64)> {
    fn of(&self, unit: &str) -> Option<i64> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, amount)| *amount)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.iter().for_each(|(unit, amount)| visit(unit, *amount));
    }
}

impl Amount<'_> {
    /// The amount in one unit, if it is named.
    pub(super) fn in_unit(&self, unit: &str) -> Option<i64> {
        match self {
            Amount::Requests(amount) => (unit == UNIT_REQUESTS).then_some(*amount),
            Amount::Units(units) => units.of(unit),
        }
    }
}

/// What is asked about a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Work that will end: charged when it is allowed.
    Acquire,
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

    /// Visits each unit that is named and its cost.
    fn each(&self, visit: &mut dyn FnMut(&str, u32));
}

impl UnitCosts for &[(&str, u32)] {
    fn of(&self, unit: &str) -> Option<u32> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, cost)| *cost)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u32)) {
        self.iter().for_each(|(unit, cost)| visit(unit, *cost));
    }
}

impl UnitCosts for Vec<(&str, u32)> {
    fn of(&self, unit: &str) -> Option<u32> {
        self.as_slice().of(unit)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u32)) {
        self.as_slice().each(visit);
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
