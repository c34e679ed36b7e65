//! Numbers as the scripts encode them: little-endian, fixed width, each within its range.
//!
//! Redis is not trusted: numbers out of range are clamped, and each clamp is counted.

use super::reply::{ReplyFault, ScriptReply};

pub(super) struct ReplyReader<'a> {
    rest: &'a [u8],
    found: usize,
    /// The bytes that were asked for.
    expected: usize,
    /// Numbers that were out of range.
    pub(super) clamped: u32,
}

impl<'a> ReplyReader<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> ReplyReader<'a> {
        ReplyReader { rest: bytes, found: bytes.len(), expected: 0, clamped: 0 }
    }

    /// Ends the reply, which must have exactly the bytes that were read.
    pub(super) fn finish(self, reply: ScriptReply) -> Result<(ScriptReply, u32), ReplyFault> {
        let ReplyReader { found, expected, clamped, .. } = self;
        if found == expected { Ok((reply, clamped)) } else { Err(ReplyFault { expected, found }) }
    }

    /// Takes the next bytes; zeros past the end, which [`ReplyReader::finish`] reports.
    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        self.expected += N;
        let Some((first, rest)) = self.rest.split_first_chunk::<N>() else { return [0; N] };
        self.rest = rest;
        *first
    }

    pub(super) fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    pub(super) fn small(&mut self, max: u32) -> u32 {
        let found = u32::from_le_bytes(self.bytes());
        self.clamped += u32::from(found > max);
        found.min(max)
    }

    /// Takes a number of eight bytes, clamped to the range.
    pub(super) fn signed(&mut self, min: i64, max: i64) -> i64 {
        let found = i64::from_le_bytes(self.bytes());
        self.clamped += u32::from(found < min || found > max);
        found.clamp(min, max)
    }

    /// Takes a number of eight bytes, clamped to 0…`max`.
    pub(super) fn amount(&mut self, max: u64) -> u64 {
        let found = i64::from_le_bytes(self.bytes());
        let whole = u64::try_from(found).unwrap_or(0).min(max);
        self.clamped += u32::from(i64::try_from(whole) != Ok(found));
        whole
    }
}

/// Encodes arguments for a script.
#[derive(Default)]
pub(super) struct ScriptWriter {
    pub(super) bytes: Vec<u8>,
}

impl ScriptWriter {
    /// Writes a number of eight bytes, clamped to `max`.
    pub(super) fn amount(&mut self, number: u64, max: u64) {
        self.bytes.extend_from_slice(&number.min(max).to_le_bytes());
    }

    /// Writes an optional number; −1 for `None`.
    pub(super) fn perhaps(&mut self, number: Option<u64>) {
        let number = number.map_or(-1, |number| i64::try_from(number.min(EXACT_MAX)).unwrap_or(-1));
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn small(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends bytes as in key names. Runs for each cell: `write!` took a twentieth of the task's time.
pub(super) fn push_hex(to: &mut Vec<u8>, bytes: &[u8]) {
    let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) };
    to.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]));
}

/// The largest integer up to which Lua counts without gaps.
pub(super) const EXACT_MAX: u64 = (1 << 53) - 1;
