//! The shape of the requests of one connection: all bytes of a frame but the id and the values of its attributes. Most
//! requests of a process differ in these alone, so that a frame of the known shape is compared, not decoded.

use std::cell::Cell;

use super::ID_MAX;
use super::decode::decode_request;
use super::descriptors::DescriptorList;
use super::fault::Fault;
use super::message::{CheckRequest, CostField, RequestFrame};
use super::reader::PayloadReader;
use crate::terms::Op;

/// The shape of a recent check of a connection: of one descriptor and a plain cost, without priority and options.
#[derive(Debug, Default)]
pub struct FrameShape {
    known: Option<Box<KnownShape>>,
    /// The requests of other shapes since it was learnt.
    misses: Cell<u32>,
}

#[derive(Debug)]
struct KnownShape {
    op: Op,
    domain: Box<str>,
    cost: u64,
    /// The bytes before the id.
    head: [u8; 2],
    /// The name of each attribute, and the bytes between the id, or the value of the attribute before, and its value.
    attributes: Vec<(Box<str>, Box<[u8]>)>,
    /// The bytes after the last value.
    tail: Box<[u8]>,
}

impl FrameShape {
    /// Decodes a request as [`decode_request`] does.
    ///
    /// # Errors As there.
    #[inline]
    pub fn decode<'a>(
        &'a self,
        payload: &'a [u8],
        descriptors: &mut DescriptorList<'a>,
    ) -> Result<RequestFrame<'a>, Fault> {
        descriptors.clear();
        if let Some(known) = &self.known
            && let Some(id) = known.read(payload, descriptors)
        {
            return Ok(RequestFrame::Check(known.op, known.check(id)));
        }
        self.misses.set(self.misses.get().saturating_add(1));
        decode_request(payload, descriptors)
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
        let reads_alike = |known: &KnownShape| {
            let mut again = DescriptorList::new();
            let id = known.read(payload, &mut again);
            id.map(|id| known.check(id)) == Some(check) && again == descriptors
        };
        reads_alike(&known).then_some(known)
    }

    /// Reads the descriptors and returns the id, if the frame has this shape.
    #[inline]
    fn read<'a>(&'a self, payload: &'a [u8], descriptors: &mut DescriptorList<'a>) -> Option<u64> {
        let mut reader = PayloadReader::new(payload.strip_prefix(&self.head)?);
        let id = reader.unsigned_to(ID_MAX)?;
        for (name, before) in &self.attributes {
            reader = PayloadReader::new(reader.rest().strip_prefix(&**before)?);
            if !descriptors.push_pair(name, reader.short_text()?) {
                return None;
            }
        }
        let is_whole = *reader.rest() == *self.tail && descriptors.end();
        is_whole.then_some(id)
    }

    #[inline]
    fn check(&self, id: u64) -> CheckRequest<'_> {
        CheckRequest { cost: CostField::Requests(self.cost), ..CheckRequest::new(id, &self.domain) }
    }
}

/// Learning costs as much as decoding twice.
const MISSES_MAX: u32 = 64;

const FIXED_TEXT: u8 = 0xa0;
