//! The elements of an outer array: trailing nils may be omitted, and unknown elements may follow.

use super::fault::{ExpectedField, FaultReason, FormatFault};
use super::reader::PayloadReader;

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
