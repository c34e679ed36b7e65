//! The shape of the requests of one connection: all bytes of a frame but the id and the values of its attributes. Most
//! requests of a process differ in these alone, so that a frame of the known shape is compared, not decoded.

use std::cell::Cell;

use super::ID_MAX;
use super::decode::decode_request;
use super::descriptors::DescriptorList;
use super::message::{CheckRequest, CostField, RequestFrame};
use super::name::as_text;
use super::reader::PayloadReader;
use crate::terms::Op;

/// The shape of a recent check of a connection: of one descriptor and a plain cost, without priority and options.
#[derive(Debug, Default)]
pub struct FrameShape {
    known: Option<Box<KnownShape>>,
    /// The requests of other shapes since it was learnt.
    misses: Cell<u32>,
}

/// A request of a known shape: without priority and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapedCheck<'a> {
    pub op: Op,
    pub id: u64,
    pub domain: &'a str,
    /// In requests.
    pub cost: u32,
}

#[derive(Debug)]
struct KnownShape {
    op: Op,
    domain: Box<str>,
    cost: u32,
    /// The bytes before the id.
    head: [u8; 2],
    /// The name of each attribute, and the bytes between the id, or the value of the attribute before, and its value.
    attributes: Vec<(Box<str>, Box<[u8]>)>,
    /// The bytes after the last value.
    tail: Box<[u8]>,
}

impl FrameShape {
    /// Reads a request of this shape as [`decode_request`] does; `None`: it has another one.
    #[inline]
    pub fn read<'a>(
        &'a self,
        payload: &'a [u8],
        descriptors: &mut DescriptorList<'a>,
    ) -> Option<ShapedCheck<'a>> {
        descriptors.clear();
        let known = self.known.as_deref();
        let check = known.and_then(|known| known.read(payload, descriptors));
        self.misses.set(self.misses.get().saturating_add(u32::from(check.is_none())));
        check
    }

    /// Whether so many requests had other shapes that the next one is worth learning.
    #[inline]
    pub fn is_outdated(&self) -> bool {
        self.misses.get() >= MISSES_MAX
    }

    /// Learns the shape of a request, if it is of the kind that is compared.
    #[cold]
    pub fn learn(&mut self, payload: &[u8]) {
        self.misses.set(0);
        self.known = KnownShape::of(payload).map(Box::new).or(self.known.take());
    }
}

impl KnownShape {
    fn of(payload: &[u8]) -> Option<KnownShape> {
        let mut descriptors = DescriptorList::new();
        let Ok(RequestFrame::Check(op, check)) = decode_request(payload, &mut descriptors) else {
            return None;
        };
        let CostField::Requests(cost) = check.cost else { return None };
        let cost = u32::try_from(cost).ok()?;
        let (head, rest) = payload.split_first_chunk()?;
        let mut reader = PayloadReader::new(rest);
        reader.unsigned()?;
        let mut rest = reader.rest();
        let attributes = descriptors.attributes().iter().map(|(name, value)| {
            // The value is a part of the rest.
            let start = value.as_ptr().addr().checked_sub(rest.as_ptr().addr())?;
            let (before, behind) = rest.split_at_checked(start)?;
            rest = behind.get(value.len()..)?;
            Some((
                Box::from(*name),
                before.strip_suffix(&[FIXED_TEXT | u8::try_from(value.len()).ok()?])?.into(),
            ))
        });
        let attributes = attributes.collect::<Option<_>>()?;
        let known =
            KnownShape { op, domain: check.domain.into(), cost, head: *head, attributes, tail: rest.into() };
        let plain = CheckRequest { cost: check.cost, ..CheckRequest::new(check.id, check.domain) };
        let reads_alike = |known: &KnownShape| {
            let mut again = DescriptorList::new();
            known.read(payload, &mut again).is_some_and(|read| read.id == check.id) && again == descriptors
        };
        (check == plain && reads_alike(&known)).then_some(known)
    }

    #[inline]
    fn read<'a>(
        &'a self,
        payload: &'a [u8],
        descriptors: &mut DescriptorList<'a>,
    ) -> Option<ShapedCheck<'a>> {
        let mut reader = PayloadReader::new(payload.strip_prefix(&self.head)?);
        let id = reader.unsigned_to(ID_MAX)?;
        let mut rest = reader.rest();
        for (name, before) in &self.attributes {
            let (own, behind) = rest.split_at_checked(before.len())?;
            let (head, behind) = behind.split_first()?;
            let length = usize::from(head ^ FIXED_TEXT);
            let (value, behind) = behind.split_at_checked(length)?;
            let is_alike = is_equal(own, before) && length < 32;
            if !is_alike || !descriptors.push_pair(name, as_text(value)?) {
                return None;
            }
            rest = behind;
        }
        let is_whole = is_equal(rest, &self.tail) && descriptors.end();
        is_whole.then_some(ShapedCheck { op: self.op, id, domain: &self.domain, cost: self.cost })
    }
}

/// Compares bytes, up to 16 without a function call.
#[inline(always)]
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    match one.len() {
        length if length != other.len() => false,
        8..=16 => have_equal_ends::<8>(one, other),
        4..=7 => have_equal_ends::<4>(one, other),
        2..=3 => have_equal_ends::<2>(one, other),
        1 => have_equal_ends::<1>(one, other),
        _ => one == other,
    }
}

#[inline(always)]
fn have_equal_ends<const N: usize>(one: &[u8], other: &[u8]) -> bool {
    one.first_chunk::<N>() == other.first_chunk() && one.last_chunk::<N>() == other.last_chunk()
}

/// Learning costs as much as decoding twice.
const MISSES_MAX: u32 = 64;

const FIXED_TEXT: u8 = 0xa0;
