//! Keyed digests of keys; the engine never stores their text.

use std::str::FromStr;

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};

use super::siphash::SipHash;
use super::tag::Tag;
use crate::limit::{halves, join};

/// A secret that makes digests unguessable, so that no caller can target the counter of another.
#[derive(Clone, Copy)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// Makes a secret from 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> HashKey {
        let [a, b, c, d, e, f, g, h, high @ ..] = bytes;
        HashKey([u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(high)])
    }

    /// Returns the hash for one rule's keys. Rules with different names, or the same rule with another kind
    /// of key, share no digests.
    pub(super) fn for_rule(&self, domain: &str, rule: &str, counts_by: &str) -> KeyHash {
        let key = SipHash::new(self.0).hash_each([domain, rule, counts_by].into_iter());
        KeyHash(SipHash::new(key))
    }

    pub(super) fn for_purpose(&self, purpose: &str) -> KeyHash {
        // A rule hashes three texts: no list of one text has the same hash.
        KeyHash(SipHash::new(SipHash::new(self.0).hash_each([purpose].into_iter())))
    }

    /// Returns the salt that separates incomparable states of the same key; it is mixed into their digests.
    pub(super) fn salt(&self, comparable: &str) -> Salt {
        let [salt, _] = SipHash::new(self.0).hash_each([comparable, ""].into_iter());
        Salt(salt & SALT_BITS)
    }
}

#[derive(Clone, Copy)]
pub(super) struct KeyHash(SipHash);

impl KeyHash {
    /// The digest of a key. Several values are each preceded by their length; the padding of the hash makes a
    /// single one unique.
    #[inline]
    pub(super) fn digest<'a>(&self, values: impl ExactSizeIterator<Item = &'a str>) -> Digest {
        self.digest_state(values, Tag::NONE, Salt::NONE)
    }

    #[inline]
    pub(super) fn digest_state<'a>(
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

    pub(super) fn digest_bytes(&self, bytes: &[u8]) -> Digest {
        Digest::new(self.0.hash(bytes), Tag::NONE, Salt::NONE)
    }
}

/// Omits the secret from logs.
impl std::fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// Omits the secret from logs.
impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(…)")
    }
}

/// Separates incomparable states; see [`HashKey::salt`]. It is mixed in by XOR, so a second time removes it.
/// That of token buckets, the most common states, is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u64")]
pub struct Salt(u64);

impl Salt {
    pub(super) const NONE: Salt = Salt(0);
}

impl From<u64> for Salt {
    fn from(bits: u64) -> Salt {
        Salt(bits & SALT_BITS)
    }
}

/// 112 bits of digest; the lowest sixteen of the upper half are the tag of the state, so that the sweep
/// recognizes unused states without their rule.
///
/// In words of four bytes, so that states of that alignment need no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u128", into = "u128")]
pub struct Digest([u32; 4]);

impl Digest {
    #[inline]
    fn new([low, high]: [u64; 2], tag: Tag, salt: Salt) -> Digest {
        let high = high & !TAG_BITS ^ salt.0 | u64::from(tag.bits());
        let ([a, b], [c, d]) = (halves(low), halves(high));
        Digest([a, b, c, d])
    }

    /// The digest of another state of the same key, with the same hash in its table.
    #[inline]
    pub(super) fn with_tag_and_salt(&self, tag: Tag, salt: Salt) -> Digest {
        Digest::new([self.hash(), self.high()], tag, salt)
    }

    pub(super) fn from_words([low, high]: [u64; 2]) -> Digest {
        Digest::from(u128::from(low) | u128::from(high) << 64)
    }

    #[inline]
    pub(super) fn tagged(&self, tag: Tag) -> Digest {
        self.with_tag_and_salt(tag, Salt::NONE)
    }

    #[inline]
    pub(super) fn hash(&self) -> u64 {
        let [low, high, ..] = self.0;
        join([low, high])
    }

    #[inline]
    pub(super) fn high(&self) -> u64 {
        let [.., low, high] = self.0;
        join([low, high])
    }

    /// The bits for the choice of a shard: neither the table, the tag nor a salt uses them, so that all states of one key
    /// are in one shard.
    #[inline]
    pub(super) fn shard_bits(&self) -> u16 {
        let [.., last] = self.0;
        u16::try_from(last >> 16).unwrap_or_default()
    }

    /// The shard, of a power of two.
    #[inline]
    pub(super) fn shard(&self, shards: usize) -> usize {
        usize::from(self.shard_bits()) & (shards - 1)
    }

    #[inline]
    pub(super) fn tag(&self) -> Tag {
        let [.., low, _] = self.0;
        Tag::from_bits(u16::try_from(low & 0xffff).unwrap_or_default())
    }
}

/// A digest as tables keep it: its tag, and its other bits folded to 64. Two keys count as one if these are equal and both
/// are in the same shard: among ten million keys, some pair is with a probability of 10⁻⁷.
///
/// Packed, so that an entry has no padding.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed)]
pub(super) struct TableKey {
    hash: u64,
    tag: Tag,
}

impl TableKey {
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    #[inline]
    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    #[inline]
    pub(super) fn set_tag(&mut self, tag: Tag) {
        self.tag = tag;
    }

    /// Whether both identify the same state under any quotas: all bits but the tag are equal, and the tag's role.
    #[inline]
    pub(super) fn is_same_state(&self, other: &TableKey) -> bool {
        let (own, tag) = (self.tag, other.tag);
        self.hash == other.hash && own.has_role_of(tag)
    }

    /// A digest with this key, in a shard that begins at these bits.
    pub(super) fn digest(&self, shard_bits: u16) -> Digest {
        Digest::from_words([self.hash, u64::from(shard_bits) << SHARD_SHIFT | u64::from(self.tag.bits())])
    }
}

impl From<&Digest> for TableKey {
    #[inline]
    fn from(digest: &Digest) -> TableKey {
        let high = digest.high();
        TableKey { hash: digest.hash() ^ (high & SALT_BITS) >> SALT_SHIFT, tag: digest.tag() }
    }
}

/// The digest of a key as operators see it: in place of the tag of a state, 16 bits of a hash of its rule, as the tables of
/// states do not tell which rule counts by a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownDigest(Digest);

impl ShownDigest {
    #[inline(never)]
    pub(super) fn new(key: &Digest, domain: &str, rule: &str) -> ShownDigest {
        ShownDigest(key.tagged(rule_bits(domain, rule)))
    }

    /// The digest of the key alone.
    pub(super) fn key(&self) -> Digest {
        self.0.tagged(Tag::NONE)
    }

    /// Whether a rule may count by this key: a rule that does not passes one time in 65 536.
    pub fn is_of(&self, domain: &str, rule: &str) -> bool {
        self.0.tag() == rule_bits(domain, rule)
    }

    /// Its 32 hexadecimal digits.
    pub fn to_hex(&self) -> ArrayString<32> {
        let mut text = ArrayString::new();
        for byte in u128::from(self.0).to_be_bytes() {
            for digit in [byte >> 4, byte & 0xf] {
                text.push(char::from(if digit < 10 { b'0' + digit } else { b'a' - 10 + digit }));
            }
        }
        text
    }
}

impl FromStr for ShownDigest {
    type Err = DigestError;

    /// Reads the digits that [`ShownDigest::to_hex`] writes.
    fn from_str(text: &str) -> Result<ShownDigest, DigestError> {
        let is_hex = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| is_hex).ok_or(DigestError)?;
        Ok(ShownDigest(Digest::from(bits)))
    }
}

/// Without a secret, so that it is the same on all hosts: refusals name the rule anyway.
fn rule_bits(domain: &str, rule: &str) -> Tag {
    let [hash, _] = SipHash::new([0; 2]).hash_each([domain, rule].into_iter());
    Tag::from_bits(u16::try_from(hash & TAG_BITS).unwrap_or_default())
}

/// A text is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 32 hexadecimal digits, as a refusal and `tidegate why` show it")]
pub struct DigestError;

impl From<Digest> for u128 {
    fn from(digest: Digest) -> u128 {
        u128::from(digest.hash()) | u128::from(digest.high()) << 64
    }
}

impl From<u128> for Digest {
    fn from(bits: u128) -> Digest {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bits.to_le_bytes();
        Digest([[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(u32::from_le_bytes))
    }
}

const TAG_BITS: u64 = 0xffff;

/// The bits of a salt: neither those of the tag nor of the shard.
const SALT_BITS: u64 = 0x0000_ffff_ffff_0000;

const SALT_SHIFT: u32 = 16;

const SHARD_SHIFT: u32 = 48;

#[cfg(test)]
mod tests {
    use super::{HashKey, Salt, TableKey};
    use crate::engine::tag::Tag;

    #[test]
    fn table_keys_differ_by_key_salt_and_role_but_not_by_tag() {
        let hash = HashKey::from_bytes([7; 16]).for_purpose("test");
        let (salt, tag) = (HashKey::from_bytes([7; 16]).salt("other"), Tag::span(1_000));
        let key = hash.digest_bytes(b"key");
        let is_same = |other| TableKey::from(&key).is_same_state(&TableKey::from(&other));
        assert!(is_same(key.tagged(tag)));
        assert!(!is_same(hash.digest_bytes(b"other")));
        assert!(!is_same(key.with_tag_and_salt(tag, salt)));
        assert!(!is_same(key.tagged(tag.elastic())));
        assert!(is_same(key.with_tag_and_salt(tag, salt).with_tag_and_salt(tag, salt)));
    }

    #[test]
    fn a_table_key_is_that_of_its_digest() {
        let hash = HashKey::from_bytes([7; 16]).for_purpose("test");
        let key = hash.digest_bytes(b"key").with_tag_and_salt(Tag::span(1_000), Salt::from(u64::MAX));
        let again = TableKey::from(&key).digest(key.shard_bits());
        assert!(TableKey::from(&again).is_same_state(&TableKey::from(&key)));
        assert_eq!((again.tag(), again.shard_bits()), (key.tag(), key.shard_bits()));
    }
}
