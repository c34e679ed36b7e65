//! Appends MessagePack values to a buffer, each in its shortest form, and frames them.

use rmp::encode;

use super::{FRAME_BYTES_MAX, HEADER_BYTES};

/// Appends to a buffer that has room; it grows only in rare cases.
#[derive(Debug)]
pub(super) struct FrameWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> FrameWriter<'o> {
    /// Starts a frame and reserves space for its length.
    #[inline]
    pub(super) fn begin(out: &'o mut Vec<u8>, room: usize) -> FrameWriter<'o> {
        out.reserve(room);
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        FrameWriter { out, start }
    }

    /// Ends the frame. Returns `false`, with the buffer as before the frame, if it is too large.
    #[inline]
    #[must_use]
    pub(super) fn finish(self) -> bool {
        let bytes = self.out.len() - self.start - HEADER_BYTES;
        if bytes <= FRAME_BYTES_MAX
            && let Ok(length) = u32::try_from(bytes)
            && let Some(header) = self.out.get_mut(self.start..self.start + HEADER_BYTES)
        {
            header.copy_from_slice(&length.to_be_bytes());
            return true;
        }
        self.out.truncate(self.start);
        false
    }

    #[inline]
    pub(super) fn nil(&mut self) {
        self.out.push(0xc0);
    }

    #[inline]
    pub(super) fn boolean(&mut self, value: bool) {
        self.out.push(if value { 0xc3 } else { 0xc2 });
    }

    #[inline]
    pub(super) fn unsigned(&mut self, value: u64) {
        match u8::try_from(value) {
            Ok(small @ ..=0x7f) => self.out.push(small),
            _ => self.wide_unsigned(value),
        }
    }

    #[inline(never)]
    fn wide_unsigned(&mut self, value: u64) {
        let (bytes, length) = encode_shortest(value);
        self.out.extend_from_slice(bytes.get(..length).unwrap_or_default());
    }

    #[inline]
    pub(super) fn optional_unsigned(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.unsigned(value),
            None => self.nil(),
        }
    }

    /// Starts a frame with encoded bytes, an integer and one more byte, all in one write.
    #[inline]
    pub(super) fn begin_with(
        out: &'o mut Vec<u8>,
        room: usize,
        [kind_a, kind_b]: [u8; 2],
        value: u64,
        byte: u8,
    ) -> FrameWriter<'o> {
        let ([a, b, c, d, e, f, g, h, i], length) = encode_shortest(value);
        let mut bytes = [0, 0, 0, 0, kind_a, kind_b, a, b, c, d, e, f, g, h, i, 0];
        let end = HEADER_BYTES + 2 + length;
        if let Some(slot) = bytes.get_mut(end) {
            *slot = byte;
        }
        out.reserve(room);
        let mut writer = FrameWriter { start: out.len(), out };
        writer.write_prefix(&bytes, end + 1);
        writer
    }

    /// Writes at most six integers or nils, and encoded bytes after fewer, at once: a capacity check for each costs more
    /// than the numbers.
    #[inline]
    pub(super) fn optional_unsigneds<const N: usize, const T: usize>(
        &mut self,
        values: [Option<u64>; N],
        tail: [u8; T],
    ) {
        const { assert!(N * INTEGER_BYTES_MAX + T <= NUMBERS_BYTES_MAX) };
        let mut bytes = [0; NUMBERS_BYTES_MAX];
        let mut end = 0;
        for value in values {
            let (number, length) = value.map_or(([0xc0, 0, 0, 0, 0, 0, 0, 0, 0], 1), encode_shortest);
            // Each takes at most its share of the bytes, so there is room for the next one.
            if let Some(slot) = bytes.get_mut(end..end + INTEGER_BYTES_MAX) {
                slot.copy_from_slice(&number);
            }
            end += length;
        }
        if let Some(slot) = bytes.get_mut(end..end + T) {
            slot.copy_from_slice(&tail);
        }
        self.write_prefix(&bytes, end + T);
    }

    /// Writes the first `length` bytes: appends all and truncates, because a copy of a constant length needs no call.
    #[inline]
    fn write_prefix<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        let end = self.out.len() + length;
        self.out.extend_from_slice(bytes);
        self.out.truncate(end);
    }

    pub(super) fn signed(&mut self, value: i64) {
        written(encode::write_sint(self.out, value));
    }

    #[inline]
    pub(super) fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(length @ ..=31) => {
                self.out.push(0xa0 | length);
                self.out.extend_from_slice(text.as_bytes());
            }
            _ => written(encode::write_str(self.out, text)),
        }
    }

    #[inline]
    pub(super) fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    pub(super) fn binary(&mut self, bytes: &[u8]) {
        written(encode::write_bin(self.out, bytes));
    }

    pub(super) fn array(&mut self, count: usize) {
        written(encode::write_array_len(self.out, saturate_length(count)));
    }

    pub(super) fn map(&mut self, count: usize) {
        written(encode::write_map_len(self.out, saturate_length(count)));
    }
}

/// Drops the result of a write: a `Vec` takes every write.
fn written<T, E>(_: Result<T, E>) {}

/// A length of more than 32 bits makes the frame too large in any case.
fn saturate_length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The shortest form of an integer, as bytes and the number of them to use.
#[inline]
fn encode_shortest(value: u64) -> ([u8; INTEGER_BYTES_MAX], usize) {
    let (marker, left, length) = match value {
        ..=0x7f => {
            let [.., small] = value.to_be_bytes();
            return ([small, 0, 0, 0, 0, 0, 0, 0, 0], 1);
        }
        0x80..=0xff => (0xcc, value << 56, 2),
        0x100..=0xffff => (0xcd, value << 48, 3),
        0x1_0000..=0xffff_ffff => (0xce, value << 32, 5),
        _ => (0xcf, value, INTEGER_BYTES_MAX),
    };
    let [a, b, c, d, e, f, g, h] = left.to_be_bytes();
    ([marker, a, b, c, d, e, f, g, h], length)
}

/// A marker and eight bytes.
const INTEGER_BYTES_MAX: usize = 9;

/// Six numbers in a row of a decision.
const NUMBERS_BYTES_MAX: usize = 6 * INTEGER_BYTES_MAX;
