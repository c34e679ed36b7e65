//! Numbers as the scripts write them: little-endian, of fixed width, none outside its range.
//!
//! What comes from Redis may be anything at all. It is cut to what can be, and each cut is counted.

use super::reply::ReplyFault;

/// Reads a reply from its beginning to its end.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// How many numbers were out of their range.
    pub(super) clamped: u32,
}

impl<'a> Reader<'a> {
    /// A reply of this many bytes and no other number: the call tells how long it is.
    pub(super) fn of(bytes: &'a [u8], expected: usize) -> Result<Reader<'a>, ReplyFault> {
        if bytes.len() != expected {
            return Err(ReplyFault::Length { expected, found: bytes.len() });
        }
        Ok(Reader { rest: bytes, clamped: 0 })
    }

    /// The next bytes; zeros once there are none, which [`Reader::of`] has ruled out.
    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let Some((first, rest)) = self.rest.split_first_chunk::<N>() else { return [0; N] };
        self.rest = rest;
        *first
    }

    pub(super) fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    /// A number of four bytes, at most this.
    pub(super) fn small(&mut self, max: u32) -> u32 {
        let found = u32::from_le_bytes(self.bytes());
        self.clamped += u32::from(found > max);
        found.min(max)
    }

    /// A number between these.
    pub(super) fn signed(&mut self, min: i64, max: i64) -> i64 {
        let found = i64::from_le_bytes(self.bytes());
        self.clamped += u32::from(found < min || found > max);
        found.clamp(min, max)
    }

    /// A number between zero and this.
    pub(super) fn amount(&mut self, max: u64) -> u64 {
        let found = i64::from_le_bytes(self.bytes());
        let whole = u64::try_from(found).unwrap_or(0).min(max);
        self.clamped += u32::from(i64::try_from(whole) != Ok(found));
        whole
    }
}

/// Writes what a script reads.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn with_capacity(bytes: usize) -> Writer {
        Writer { bytes: Vec::with_capacity(bytes) }
    }

    /// A number of eight bytes, cut to this.
    pub(super) fn amount(&mut self, number: u64, max: u64) {
        self.bytes.extend_from_slice(&number.min(max).to_le_bytes());
    }

    /// A number that may be missing, which is −1.
    pub(super) fn perhaps(&mut self, number: Option<u64>) {
        let number = number.map_or(-1, |number| i64::try_from(number.min(EXACT_MAX)).unwrap_or(-1));
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn small(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }
}

/// Sixteen bytes as the names of keys have them.
pub(super) fn hex(bytes: [u8; 16]) -> String {
    let mut text = Vec::with_capacity(32);
    push_hex(&mut text, &bytes);
    text.into_iter().map(char::from).collect()
}

/// Adds bytes as the names of keys have them. Each cell of each call has such a name: `write!` took a twentieth of the talk.
pub(super) fn push_hex(to: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) };
    to.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]));
}

/// The largest whole number that Lua counts to without a gap.
pub(super) const EXACT_MAX: u64 = (1 << 53) - 1;
