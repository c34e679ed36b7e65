//! A reader of little-endian numbers, texts and lists. It never reads past the end.

use super::Useless;

/// The bytes that are left to read.
#[derive(Debug)]
pub(super) struct ByteReader<'b>(&'b [u8]);

impl<'b> ByteReader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> ByteReader<'b> {
        ByteReader(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Useless> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, Useless> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, Useless> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Useless> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Useless> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Useless> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Useless::Damaged("a boolean is neither 0 nor 1")),
        }
    }

    pub(super) fn f64(&mut self) -> Result<f64, Useless> {
        self.u64().map(f64::from_bits)
    }

    /// Reads an optional value, preceded by a boolean.
    pub(super) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut ByteReader<'b>) -> Result<T, Useless>,
    ) -> Result<Option<T>, Useless> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a list, preceded by its length. It grows as it is read, so a wrong length does not reserve memory.
    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut ByteReader<'b>) -> Result<T, Useless>,
    ) -> Result<Vec<T>, Useless> {
        let len = self.u16()?;
        (0..len).map(|_| read(self)).collect()
    }

    /// Reads a text of at most 65 535 bytes, preceded by its length.
    pub(super) fn text(&mut self) -> Result<Box<str>, Useless> {
        let len = usize::from(self.u16()?);
        let (text, rest) = self.0.split_at_checked(len).ok_or(TRUNCATED)?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| Useless::Damaged("a text is not UTF-8"))?;
        Ok(text.into())
    }
}

const TRUNCATED: Useless = Useless::Damaged("a section holds less than its entries");
