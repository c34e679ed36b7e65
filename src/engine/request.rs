//! Requests and charges, as the engine gets them.

use std::fmt;

use super::known_selection::KnownSelection;
use super::leases::Session;
use crate::clock::Micros;
pub use crate::terms::Op;
use crate::terms::RefundReference;

/// One request to be judged. Everything is borrowed from the frame it came in.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub op: Op,
    pub domain: &'a str,
    pub descriptors: Descriptors<'a>,
    pub cost: Cost<'a>,
    /// Whether the true cost exceeds `u32::MAX`, to which it was cut: the request is then refused for good.
    pub oversized: bool,
    pub priority: Option<&'a str>,
    /// The longest acceptable wait; zero: none, `None`: as long as the rule's queue.
    pub wait_max: Option<Micros>,
    pub idempotency_key: Option<IdempotencyKey<'a>>,
    /// The session. Without one a request gets no lease and no pool sheds it.
    pub session: Option<&'a Session>,
    pub id: u64,
    /// How long it has waited in the application already.
    pub queued: Option<Micros>,
    pub lists_all_limits: bool,
    /// Whether the client can wait for a remote check, if a rule needs one.
    pub may_wait: bool,
    /// What all requests with its domain and names of attributes match; `None`: they are not known.
    pub known_selection: Option<&'a KnownSelection>,
}

impl<'a> Request<'a> {
    /// Makes a request of cost 1 without options.
    pub fn new(op: Op, domain: &'a str, descriptors: Descriptors<'a>) -> Request<'a> {
        Request {
            op,
            domain,
            descriptors,
            cost: Cost::Requests(1),
            oversized: false,
            priority: None,
            wait_max: None,
            idempotency_key: None,
            session: None,
            id: 0,
            queued: None,
            lists_all_limits: false,
            may_wait: false,
            known_selection: None,
        }
    }
}

/// Lists of attributes, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// The attributes of all descriptors. Of a repeated name rules see the first value; empty means absent.
    pub attributes: &'a [(&'a str, &'a str)],
    /// The index in `attributes` at which each descriptor ends.
    pub ends: &'a [u8],
}

impl<'a> Descriptors<'a> {
    /// Makes a single descriptor, for clients without descriptor trees.
    pub fn from_attributes(attributes: &'a [(&'a str, &'a str)]) -> Descriptors<'a> {
        Descriptors { attributes, ends: &[] }
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [(&'a str, &'a str)]> + Clone + use<'a> {
        let (attributes, mut start) = (self.attributes, 0);
        let whole = if self.ends.is_empty() { Some(attributes) } else { None };
        whole.into_iter().chain(self.ends.iter().map(move |end| {
            let end = usize::from(*end);
            // Reading it as empty instead would leave it uncounted by every tree node.
            let descriptor = attributes.get(std::mem::replace(&mut start, end)..end);
            descriptor.unwrap_or_else(|| unreachable!("a descriptor ends among the attributes"))
        }))
    }
}

/// An idempotency key with its scope: the same key gets the same grant again.
#[derive(Clone, Copy, Debug)]
pub struct IdempotencyKey<'a> {
    /// The session, or the connection without one.
    pub session: &'a [u8],
    pub user: u32,
    /// The request's name, 1 to 64 bytes.
    pub name: &'a [u8],
}

/// A charge of the actual cost after the fact.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub domain: &'a str,
    pub descriptors: Descriptors<'a>,
    /// The amount; a negative one is a refund.
    pub amount: Amount<'a>,
    pub idempotency_key: Option<IdempotencyKey<'a>>,
    /// The grant or charge that a negative amount refunds; `None`: not given.
    pub refund_of: Option<RefundBy<'a>>,
    /// Whether a negative amount may omit `refund_of`.
    pub trusted: bool,
}

/// The target of a refund, and the user who requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundBy<'a> {
    /// The user (uid) whose grant or charge it must be.
    pub user: u32,
    pub reference: RefundReference<'a>,
}

pub type Cost<'a> = ByUnit<'a, u32>;

/// The amount of a charge, within ± 2³².
pub type Amount<'a> = ByUnit<'a, i64>;

/// A number in one or more units.
#[derive(Clone, Copy, Debug)]
pub enum ByUnit<'a, N> {
    /// In requests alone.
    Requests(N),
    /// By unit. A rule whose unit is missing is neither checked nor charged.
    Units(&'a dyn UnitNumbers<N>),
}

/// Numbers by unit, in any representation: the engine reads the units of its rules without copies.
pub trait UnitNumbers<N>: fmt::Debug {
    fn each(&self, visit: &mut dyn FnMut(&str, N));
}

impl<N: Copy + fmt::Debug> UnitNumbers<N> for Vec<(&str, N)> {
    fn each(&self, visit: &mut dyn FnMut(&str, N)) {
        self.iter().for_each(|(unit, number)| visit(unit, *number));
    }
}

impl<N: Copy> ByUnit<'_, N> {
    /// Returns the number in one unit, if given.
    #[inline]
    pub fn in_unit(&self, unit: &str) -> Option<N> {
        match self {
            ByUnit::Requests(number) => (unit == UNIT_REQUESTS).then_some(*number),
            ByUnit::Units(units) => {
                let mut found = None;
                units.each(&mut |name, number| found = found.or((name == unit).then_some(number)));
                found
            }
        }
    }

    /// Sets `numbers` to those in `units`, in one pass: a frame has room for thousands of units.
    pub(super) fn read_into(&self, units: &[Box<str>], numbers: &mut Vec<Option<N>>) {
        numbers.clear();
        numbers.resize(units.len(), None);
        self.each(&mut |name, number| {
            let known = units.iter().zip(numbers.iter_mut()).find(|(unit, _)| ***unit == *name);
            known.into_iter().for_each(|(_, slot)| *slot = slot.or(Some(number)));
        });
    }

    pub(super) fn each(&self, visit: &mut dyn FnMut(&str, N)) {
        match self {
            ByUnit::Requests(number) => visit(UNIT_REQUESTS, *number),
            ByUnit::Units(units) => units.each(visit),
        }
    }
}

pub const UNIT_REQUESTS: &str = "requests";
