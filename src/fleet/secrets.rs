//! Digests and keys derived from the fleet secret, none of which reveals a byte of it.

use crate::terms::hex;
use ring::hmac;

/// A short digest that identifies a secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SecretDigest([u8; 8]);

impl SecretDigest {
    pub fn of_secret(secret: &[u8]) -> SecretDigest {
        let mut hasher = sha1_smol::Sha1::from(b"tidegate: which secret of a fleet\0");
        hasher.update(secret);
        let digest = hasher.digest().bytes();
        SecretDigest(digest.first_chunk().copied().unwrap_or_default())
    }

    /// The mark as a part of key names in Redis.
    pub(super) fn name(self) -> String {
        hex(&self.0)
    }
}

/// Shows a prefix of 8 hex digits, enough for an operator to compare.
impl std::fmt::Display for SecretDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().get(..8).unwrap_or_default())
    }
}

/// The key that authenticates values in Redis.
#[derive(Clone, Debug)]
pub struct OverridesKey(hmac::Key);

impl OverridesKey {
    pub fn of_secret(secret: &[u8]) -> OverridesKey {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        OverridesKey(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }

    /// Appends the MAC of a value of this Redis key.
    pub(super) fn sign(&self, redis_key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
        let mac = hmac::sign(&self.0, &[redis_key, &value].concat());
        value.extend(mac.as_ref());
        value
    }

    /// Returns the value without its MAC; `None` if the MAC is not of this value and Redis key.
    pub(super) fn verify<'v>(&self, redis_key: &[u8], signed: &'v [u8]) -> Option<&'v [u8]> {
        let (value, mac) = signed.split_last_chunk::<MAC_BYTES>()?;
        hmac::verify(&self.0, &[redis_key, value].concat(), mac).ok().map(|()| value)
    }
}

/// Separates the derived key from other uses of the secret.
const PURPOSE: &[u8] = b"tidegate: the MAC of fleet overrides, version 1";
pub(super) const MAC_BYTES: usize = 32;
