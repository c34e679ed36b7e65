//! Appends MessagePack values to a buffer, each in its shortest form, and whole frames around them.

use super::{FRAME_BYTES_MAX, HEADER_BYTES};

/// Appends to a buffer that has room: growing it is possible, but not meant.
#[derive(Debug)]
pub(super) struct Writer<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Writer<'o> {
    /// Starts a frame, leaving room for its length.
    #[inline]
    pub(super) fn begin(out: &'o mut Vec<u8>, room: usize) -> Writer<'o> {
        out.reserve(room);
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        Writer { out, start }
    }

    /// Ends the frame. `false`: it is too large, and the buffer is as it was before.
    #[inline]
    #[must_use]
    pub(super) fn finish(self) -> bool {
        let bytes = self.out.len() - self.start - HEADER_BYTES;
        if bytes <= FRAME_BYTES_MAX
            && let Ok(length) = u32::try_from(bytes)
            && let Some(header) = self.out.get_mut(self.start..)
            && let Some(header) = header.first_chunk_mut::<HEADER_BYTES>()
        {
            *header = length.to_be_bytes();
            return true;
        }
        self.out.truncate(self.start);
        false
    }

    #[inline]
    pub(super) fn nil(&mut self) {
        self.out.push(0xc0);
    }

    /// Values that are known as bytes.
    #[inline]
    pub(super) fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        self.out.extend_from_slice(&bytes);
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
        let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
        // One write each: every write asks once whether there is room.
        match value {
            ..=0xff => self.out.extend_from_slice(&[0xcc, h]),
            0x100..=0xffff => self.out.extend_from_slice(&[0xcd, g, h]),
            0x1_0000..=0xffff_ffff => self.out.extend_from_slice(&[0xce, e, f, g, h]),
            _ => self.out.extend_from_slice(&[0xcf, a, b, c, d, e, f, g, h]),
        }
    }

    #[inline]
    pub(super) fn optional_unsigned(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.unsigned(value),
            None => self.nil(),
        }
    }

    pub(super) fn signed(&mut self, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            self.unsigned(value);
        } else if let Ok(value) = i8::try_from(value) {
            match value {
                // From -32 on the byte itself is the value.
                -32.. => self.out.extend_from_slice(&value.to_be_bytes()),
                _ => self.marked(0xd0, value.to_be_bytes()),
            }
        } else if let Ok(value) = i16::try_from(value) {
            self.marked(0xd1, value.to_be_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.marked(0xd2, value.to_be_bytes());
        } else {
            self.marked(0xd3, value.to_be_bytes());
        }
    }

    #[inline]
    pub(super) fn text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(length @ ..=31) => self.out.push(0xa0 | length),
            Ok(length) => self.out.extend_from_slice(&[0xd9, length]),
            Err(_) => self.length(0xda, text.len()),
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    #[inline]
    pub(super) fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    pub(super) fn binary(&mut self, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(length) => self.out.extend_from_slice(&[0xc4, length]),
            Err(_) => self.length(0xc5, bytes.len()),
        }
        self.out.extend_from_slice(bytes);
    }

    /// The head of an array.
    #[inline]
    pub(super) fn array(&mut self, count: usize) {
        match u8::try_from(count) {
            Ok(count @ ..=15) => self.out.push(0x90 | count),
            _ => self.length(0xdc, count),
        }
    }

    /// The head of a map.
    pub(super) fn map(&mut self, count: usize) {
        match u8::try_from(count) {
            Ok(count @ ..=15) => self.out.push(0x80 | count),
            _ => self.length(0xde, count),
        }
    }

    /// A length in 16 bits, or in 32 with the marker after that of 16.
    #[inline(never)]
    fn length(&mut self, marker16: u8, length: usize) {
        match u16::try_from(length) {
            Ok(length) => self.marked(marker16, length.to_be_bytes()),
            // More than 32 bits can say makes the frame too large in any case.
            Err(_) => self.marked(marker16 + 1, u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()),
        }
    }

    #[inline]
    fn marked<const N: usize>(&mut self, marker: u8, bytes: [u8; N]) {
        self.out.push(marker);
        self.out.extend_from_slice(&bytes);
    }
}
