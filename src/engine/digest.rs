//! What a key is known by: a keyed digest, never its text.

use super::siphash::SipHash;
use super::tag::{ROLE_SHIFT, Tag};

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

    /// The hash of one rule's keys, under a key of its own. Rules that share no name share no digest, and a rule that
    /// comes to count by something else shares none with what it was.
    pub(super) fn of_rule(&self, domain: &str, rule: &str, counts_by: &str) -> KeyHash {
        let key = SipHash::new(self.0).hash_each([domain, rule, counts_by].into_iter());
        KeyHash(SipHash::new(key))
    }

    /// The hash of what is no rule's key, named for what it is.
    pub(super) fn of_purpose(&self, purpose: &str) -> KeyHash {
        // A rule's has three texts: no list of one text hashes like it.
        KeyHash(SipHash::new(SipHash::new(self.0).hash_each([purpose].into_iter())))
    }

    /// What sets states apart that cannot be compared: to be mixed into the digests of their keys.
    pub(super) fn salt(&self, comparable: &str) -> Salt {
        let [salt, _] = SipHash::new(self.0).hash_each([comparable, ""].into_iter());
        Salt(salt & SALT_BITS)
    }
}

/// The hash of one rule's keys.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(SipHash);

impl KeyHash {
    /// The digest of a key. Where there are several values each has its length before it; one alone is told from
    /// every other by the hash's own padding.
    #[inline]
    pub(super) fn digest<'a>(&self, values: impl ExactSizeIterator<Item = &'a str>) -> Digest {
        self.digest_of_state(values, Tag::NONE, Salt::NONE)
    }

    /// The digest of one of the key's states.
    #[inline]
    pub(super) fn digest_of_state<'a>(
        &self,
        mut values: impl ExactSizeIterator<Item = &'a str>,
        tag: Tag,
        salt: Salt,
    ) -> Digest {
        let hash = if values.len() == 1 {
            self.0.hash(values.next().unwrap_or_default().as_bytes())
        } else {
            self.0.hash_each(values)
        };
        Digest::new(hash, tag, salt)
    }

    /// The digest of some bytes.
    pub(super) fn digest_bytes(&self, bytes: &[u8]) -> Digest {
        Digest::new(self.0.hash(bytes), Tag::NONE, Salt::NONE)
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

/// See [`HashKey::salt`]. Mixed in twice, it is out again. That of token buckets, the most there are, is zero: nothing to mix in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Salt(u64);

impl Salt {
    pub(super) const NONE: Salt = Salt(0);

    /// Its bits, for a snapshot.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// From the bits of a snapshot.
    #[must_use]
    pub fn of_bits(bits: u64) -> Salt {
        Salt(bits & SALT_BITS)
    }
}

/// 112 bits of digest and, in the lowest sixteen, the tag of the state kept under it: so the sweep can tell a state
/// that is as good as new without knowing its rule.
///
/// In words of four bytes, so that a state which asks for no more than that has no padding behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u32; 4]);

impl Digest {
    #[inline]
    fn new([low, high]: [u64; 2], tag: Tag, salt: Salt) -> Digest {
        let high = high & !TAG_BITS ^ salt.0 | u64::from(tag.bits());
        let (halves_low, halves_high) = (halves(low), halves(high));
        Digest([halves_low[0], halves_low[1], halves_high[0], halves_high[1]])
    }

    /// Its bytes, for a snapshot.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.hash()) | u128::from(self.high()) << 64).to_le_bytes()
    }

    /// From the bytes of a snapshot.
    #[must_use]
    pub fn of_bytes(bytes: [u8; 16]) -> Digest {
        let [a, b, c, d, e, f, g, h, high @ ..] = bytes;
        let (low, high) = (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(high));
        let (halves_low, halves_high) = (halves(low), halves(high));
        Digest([halves_low[0], halves_low[1], halves_high[0], halves_high[1]])
    }

    /// The digest of the same key for another state of it. It lives in the same place of its table.
    #[inline]
    pub(super) fn of(&self, tag: Tag, salt: Salt) -> Digest {
        Digest::new([self.hash(), self.high()], tag, salt)
    }

    /// The same digest with another tag.
    #[inline]
    pub(super) fn tagged(&self, tag: Tag) -> Digest {
        self.of(tag, Salt::NONE)
    }

    /// Where in a table.
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        let [low, high, ..] = self.0;
        u64::from(low) | u64::from(high) << 32
    }

    #[inline]
    pub(super) fn high(&self) -> u64 {
        let [.., low, high] = self.0;
        u64::from(low) | u64::from(high) << 32
    }

    /// Which table of a power of two of them: bits that neither the table, nor the tag, nor a salt uses, so all
    /// states of one key live in one shard.
    #[inline]
    pub(super) fn shard(&self, shards: usize) -> usize {
        usize::try_from(self.high() >> SHARD_SHIFT).unwrap_or_default() & (shards - 1)
    }

    /// Whether it is of the same state, under whatever quotas that was last changed: all but the tag is equal, and of
    /// the tag the role.
    #[inline]
    pub(super) fn is_of_same_state(&self, other: &Digest) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        a == e && b == f && (c ^ g) & SAME_BITS == 0 && d == h
    }

    /// The tag of its state.
    #[inline]
    pub(super) fn tag(&self) -> Tag {
        let [.., low, _] = self.0;
        Tag::from_bits(u16::try_from(low & 0xffff).unwrap_or_default())
    }
}

#[inline]
fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

const TAG_BITS: u64 = 0xffff;

/// Of the third word all that tells states apart.
const SAME_BITS: u32 = u32::MAX << ROLE_SHIFT;

/// What a salt may change: neither the tag nor the shard.
const SALT_BITS: u64 = 0x0000_ffff_ffff_0000;

const SHARD_SHIFT: u32 = 48;
