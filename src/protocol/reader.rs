//! A cursor over the bytes of one payload: reads one MessagePack value at a time and never past the end.
//!
//! `None` means that the next value has another type, without a reason: the slow check of `wellformed` decides whether
//! the bytes or the field are at fault. Not `rmp::decode`, which reads through `std::io::Read`, builds an error for
//! every mismatch and has no bounds; its [`Marker`] is used for all but the most common forms.

use rmp::Marker;

use super::fault::{ExpectedField, FaultReason, FormatFault};
use super::name::{as_name, as_text};

#[derive(Clone, Copy, Debug)]
pub(super) struct PayloadReader<'a> {
    rest: &'a [u8],
    unchecked: bool,
}

impl<'a> PayloadReader<'a> {
    #[inline]
    pub(super) fn new(payload: &'a [u8]) -> PayloadReader<'a> {
        PayloadReader { rest: payload, unchecked: false }
    }

    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether every byte was read and none was skipped unchecked.
    #[inline]
    pub(super) fn is_finished_and_checked(&self) -> bool {
        self.rest.is_empty() && !self.unchecked
    }

    /// Records that bytes were skipped unchecked: the slow check must follow.
    pub(super) fn mark_unchecked(&mut self) {
        self.unchecked = true;
    }

    #[inline]
    pub(super) fn nil(&mut self) -> bool {
        match self.rest {
            [NIL, rest @ ..] => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Reads a non-negative integer of any width.
    #[inline]
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        match self.rest {
            [small @ ..=0x7f, rest @ ..] => {
                self.rest = rest;
                Some(u64::from(*small))
            }
            _ => self.wide_unsigned(),
        }
    }

    #[inline]
    fn wide_unsigned(&mut self) -> Option<u64> {
        match self.rest {
            [0xcd, a, b, rest @ ..] => {
                self.rest = rest;
                Some(u64::from(u16::from_be_bytes([*a, *b])))
            }
            [0xce, a, b, c, d, rest @ ..] => {
                self.rest = rest;
                Some(u64::from(u32::from_be_bytes([*a, *b, *c, *d])))
            }
            _ => {
                // By way of a copy: this reader stays in registers.
                let mut copy = *self;
                let value = copy.wide_integer()?;
                *self = copy;
                u64::try_from(value).ok()
            }
        }
    }

    pub(super) fn unsigned8(&mut self) -> Option<u8> {
        u8::try_from(self.unsigned()?).ok()
    }

    #[inline]
    pub(super) fn unsigned_to(&mut self, max: u64) -> Option<u64> {
        self.unsigned().filter(|value| *value <= max)
    }

    /// Reads any integer; MessagePack has none outside the 64-bit ranges.
    pub(super) fn integer(&mut self) -> Option<i128> {
        match self.rest {
            [small @ ..=0x7f, rest @ ..] => {
                self.rest = rest;
                Some(i128::from(*small))
            }
            _ => self.wide_integer(),
        }
    }

    #[inline(never)]
    fn wide_integer(&mut self) -> Option<i128> {
        Some(match self.marker()? {
            Marker::FixPos(value) => i128::from(value),
            Marker::FixNeg(value) => i128::from(value),
            Marker::U8 => i128::from(u8::from_be_bytes(self.chunk()?)),
            Marker::U16 => i128::from(u16::from_be_bytes(self.chunk()?)),
            Marker::U32 => i128::from(u32::from_be_bytes(self.chunk()?)),
            Marker::U64 => i128::from(u64::from_be_bytes(self.chunk()?)),
            Marker::I8 => i128::from(i8::from_be_bytes(self.chunk()?)),
            Marker::I16 => i128::from(i16::from_be_bytes(self.chunk()?)),
            Marker::I32 => i128::from(i32::from_be_bytes(self.chunk()?)),
            Marker::I64 => i128::from(i64::from_be_bytes(self.chunk()?)),
            _ => return None,
        })
    }

    pub(super) fn boolean(&mut self) -> Option<bool> {
        match self.marker()? {
            Marker::True => Some(true),
            Marker::False => Some(false),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn text(&mut self) -> Option<&'a str> {
        as_text(self.text_bytes()?)
    }

    #[inline]
    pub(super) fn name(&mut self) -> Option<&'a str> {
        as_name(self.text_bytes()?)
    }

    #[inline]
    fn text_bytes(&mut self) -> Option<&'a [u8]> {
        let length = match self.short_text_length() {
            Some(length) => length,
            None => self.long_text_length()?,
        };
        self.take_bytes(length)
    }

    #[inline]
    fn short_text_length(&mut self) -> Option<usize> {
        match self.rest {
            [head @ 0xa0..=0xbf, rest @ ..] => {
                self.rest = rest;
                Some(usize::from(head & 0x1f))
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn long_text_length(&mut self) -> Option<usize> {
        match self.marker()? {
            Marker::Str8 => self.length8(),
            Marker::Str16 => self.length16(),
            Marker::Str32 => self.length32(),
            _ => None,
        }
    }

    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let length = match self.marker()? {
            Marker::Bin8 => self.length8(),
            Marker::Bin16 => self.length16(),
            Marker::Bin32 => self.length32(),
            _ => None,
        }?;
        self.take_bytes(length)
    }

    /// Reads the head of an array. Returns the announced number of values.
    #[inline]
    pub(super) fn array(&mut self) -> Option<usize> {
        match self.rest {
            [head @ 0x90..=0x9f, rest @ ..] => {
                self.rest = rest;
                Some(usize::from(head & 0x0f))
            }
            _ => self.long_array(),
        }
    }

    #[inline(never)]
    fn long_array(&mut self) -> Option<usize> {
        match self.marker()? {
            Marker::Array16 => self.length16(),
            Marker::Array32 => self.length32(),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn at_map(&self) -> bool {
        matches!(self.rest, [0x80..=0x8f | 0xde | 0xdf, ..])
    }

    /// Reads the head of a map. Returns the announced number of keys.
    pub(super) fn map(&mut self) -> Option<usize> {
        match self.marker()? {
            Marker::FixMap(count) => Some(usize::from(count)),
            Marker::Map16 => self.length16(),
            Marker::Map32 => self.length32(),
            _ => None,
        }
    }

    /// Skips one value with all nested values, unchecked; the slow check must precede or follow.
    ///
    /// Every iteration reads at least a byte, so wrong counts end with the payload.
    pub(super) fn skip(&mut self) -> Option<()> {
        let mut left: u64 = 1;
        while left > 0 {
            left -= 1;
            let start = *self;
            match self.marker()? {
                Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                    *self = start;
                    left = left.saturating_add(self.array()? as u64);
                }
                Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                    *self = start;
                    left = left.saturating_add((self.map()? as u64).saturating_mul(2));
                }
                marker => {
                    let length = self.scalar_length(marker)?;
                    self.take_bytes(length)?;
                }
            }
        }
        Some(())
    }

    /// The bytes of a scalar after its marker and its length; reads the length.
    pub(super) fn scalar_length(&mut self, marker: Marker) -> Option<usize> {
        match marker {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => Some(0),
            Marker::U8 | Marker::I8 => Some(1),
            Marker::U16 | Marker::I16 => Some(2),
            Marker::U32 | Marker::I32 | Marker::F32 => Some(4),
            Marker::U64 | Marker::I64 | Marker::F64 => Some(8),
            Marker::FixStr(length) => Some(usize::from(length)),
            Marker::Str8 | Marker::Bin8 => self.length8(),
            Marker::Str16 | Marker::Bin16 => self.length16(),
            Marker::Str32 | Marker::Bin32 => self.length32(),
            _ => None,
        }
    }

    pub(super) fn marker(&mut self) -> Option<Marker> {
        let (head, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(Marker::from_u8(*head))
    }

    #[inline]
    pub(super) fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn length8(&mut self) -> Option<usize> {
        self.chunk().map(|bytes| usize::from(u8::from_be_bytes(bytes)))
    }

    fn length16(&mut self) -> Option<usize> {
        self.chunk().map(|bytes| usize::from(u16::from_be_bytes(bytes)))
    }

    fn length32(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.chunk()?)).ok()
    }

    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*chunk)
    }
}

/// The elements of an outer array: trailing nils may be omitted, and unknown elements may follow.
#[derive(Debug)]
pub(super) struct Elements<'a> {
    pub(super) reader: PayloadReader<'a>,
    left: usize,
}

impl<'a> Elements<'a> {
    #[inline]
    pub(super) fn open(payload: &'a [u8]) -> Elements<'a> {
        let mut reader = PayloadReader::new(payload);
        // A payload that is no array counts as empty; the slow check distinguishes them.
        let left = reader.array().unwrap_or_default();
        Elements { reader, left }
    }

    /// Whether the next element is present and not nil; if so, the reader is in front of it.
    #[inline]
    pub(super) fn next_is_present(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        !self.reader.nil()
    }

    #[inline]
    pub(super) fn required<T>(
        &mut self,
        expected: &'static ExpectedField,
        read: impl FnOnce(&mut PayloadReader<'a>) -> Option<T>,
    ) -> Result<T, FaultReason> {
        if self.next_is_present() { read(&mut self.reader) } else { None }.ok_or(FaultReason::Field(expected))
    }

    /// Reads an element that may be nil or missing.
    #[inline]
    pub(super) fn optional<T>(
        &mut self,
        expected: &'static ExpectedField,
        read: impl FnOnce(&mut PayloadReader<'a>) -> Option<T>,
    ) -> Result<Option<T>, FaultReason> {
        if !self.next_is_present() {
            return Ok(None);
        }
        read(&mut self.reader).map(Some).ok_or(FaultReason::Field(expected))
    }

    /// Reads the op or kind, and the id.
    #[inline]
    pub(super) fn read_head(&mut self) -> Result<(u64, Option<u64>), FaultReason> {
        let op = if self.next_is_present() { self.reader.unsigned() } else { None };
        let op = op.ok_or(FaultReason::Flaw(FormatFault::Op))?;
        let id = match self.next_is_present() {
            true => Some(self.reader.unsigned().ok_or(FaultReason::Flaw(FormatFault::Id))?),
            false => None,
        };
        Ok((op, id))
    }

    /// Skips the elements that a later version may have added.
    #[inline]
    pub(super) fn finish(&mut self) -> Result<(), FaultReason> {
        if self.left == 0 { Ok(()) } else { self.skip_rest() }
    }

    #[cold]
    fn skip_rest(&mut self) -> Result<(), FaultReason> {
        self.reader.mark_unchecked();
        while let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            self.reader.skip().ok_or(FaultReason::Flaw(FormatFault::Truncated))?;
        }
        Ok(())
    }
}

/// Reads the head of a map and calls `field` for each key in `known` whose value is not nil. Skips other values.
pub(super) fn read_map<'a>(
    reader: &mut PayloadReader<'a>,
    expected: &'static ExpectedField,
    known: &[&str],
    mut field: impl FnMut(&mut PayloadReader<'a>, &'a str) -> Result<(), FaultReason>,
) -> Result<(), FaultReason> {
    let mut seen = 0u32;
    for _ in 0..reader.map().ok_or(FaultReason::Field(expected))? {
        let key = reader.text().ok_or(FaultReason::Flaw(FormatFault::KeyType))?;
        let Some(index) = known.iter().position(|name| *name == key) else {
            reader.mark_unchecked();
            reader.skip().ok_or(FaultReason::Flaw(FormatFault::Truncated))?;
            continue;
        };
        if seen & (1 << index) != 0 {
            return Err(FaultReason::Flaw(FormatFault::KeyTwice));
        }
        seen |= 1 << index;
        if !reader.nil() {
            field(reader, key)?;
        }
    }
    Ok(())
}

const NIL: u8 = 0xc0;
