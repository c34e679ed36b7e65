//! Identification of fleet secrets by digest, without revealing a byte of them.

/// A short digest that identifies a secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SecretDigest([u8; 8]);

impl SecretDigest {
    /// Returns the mark of a secret.
    #[must_use]
    pub fn of_secret(secret: &[u8]) -> SecretDigest {
        let mut hasher = sha1_smol::Sha1::from(b"tidegate: which secret of a fleet\0");
        hasher.update(secret);
        let digest = hasher.digest().bytes();
        SecretDigest(digest.first_chunk().copied().unwrap_or_default())
    }

    /// The mark as a part of key names in Redis.
    pub(super) fn name(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Shows a prefix of 8 hex digits, enough for an operator to compare.
impl std::fmt::Display for SecretDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().get(..8).unwrap_or_default())
    }
}
