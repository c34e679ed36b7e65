//! What a key is known by: a keyed digest, never its text.

use super::siphash::SipHash;
use crate::limit::Scale;

/// A secret that makes digests unguessable, so that no caller can aim at another's counter.
#[derive(Clone, Copy)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// From 16 bytes of randomness.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> HashKey {
        let [a, b, c, d, e, f, g, h, high @ ..] = bytes;
        HashKey([u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(high)])
    }

    /// The hash of one rule's keys, under a key of its own. Rules that share no name share no digest.
    pub(super) fn of_rule(&self, domain: &str, rule: &str) -> KeyHash {
        let key = SipHash::new(self.0).hash_each([domain, rule].into_iter());
        KeyHash(SipHash::new(key))
    }
}

/// The hash of one rule's keys.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(SipHash);

impl KeyHash {
    /// The digest of a key. Where there are several values each has its length before it; one alone is told from
    /// every other by the hash's own padding.
    #[inline]
    pub(super) fn digest<'a>(
        &self,
        scale: Scale,
        mut values: impl ExactSizeIterator<Item = &'a str>,
    ) -> Digest {
        let [low, high] = if values.len() == 1 {
            self.0.hash(values.next().unwrap_or_default().as_bytes())
        } else {
            self.0.hash_each(values)
        };
        Digest([low, high & !SCALE_BITS | u64::from(scale.ticks_per_nano()) & SCALE_BITS])
    }
}

/// A secret is not for logs.
impl std::fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// A secret is not for logs.
impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(…)")
    }
}

/// 121 bits of digest and, in the lowest seven, the scale of the state kept under it: so the sweep can tell a full
/// bucket without knowing its rule, and one scale never reads the ticks of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest([u64; 2]);

impl Digest {
    /// Where in a table.
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        self.0[0]
    }

    /// Which table of a power of two of them: the bits that neither the table nor the scale use.
    #[inline]
    pub(super) fn shard(&self, shards: usize) -> usize {
        usize::try_from(self.0[1] >> SHARD_SHIFT).unwrap_or_default() & (shards - 1)
    }

    /// The scale of its state. 128 ticks, the most there are, stand as 0.
    #[inline]
    pub(super) fn scale(&self) -> Scale {
        let ticks = u8::try_from(self.0[1] & SCALE_BITS).unwrap_or_default();
        Scale::from_ticks_per_nano(ticks).unwrap_or(Scale::FINEST)
    }
}

const SCALE_BITS: u64 = 0x7f;

const SHARD_SHIFT: u32 = 32;
