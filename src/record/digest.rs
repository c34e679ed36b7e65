//! Keyed digests. The key is drawn for one recording and never stored: equal texts have equal digests within
//! a recording and different ones across recordings.

use std::hash::Hasher;
use std::io;

use siphasher::sip::SipHasher24;

use crate::sys;

/// The key of one recording.
#[derive(Clone, Copy)]
pub(crate) struct RecordingKey([u8; 16]);

/// Hides the secret from logs.
impl std::fmt::Debug for RecordingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl RecordingKey {
    /// Draws a random key.
    pub(crate) fn draw() -> io::Result<RecordingKey> {
        sys::random_bytes().map(RecordingKey)
    }

    /// Returns the digest of some bytes; digests of different purposes are independent.
    pub(super) fn digest(&self, purpose: &str, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&u64::try_from(purpose.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.write(purpose.as_bytes());
        hasher.write(bytes);
        hasher.finish()
    }

    /// Returns the hash that a trace shows in place of an attribute's value.
    pub(super) fn hash_value(&self, attribute: &str, value: &str) -> String {
        format!("{HASHED}{}", letters(self.digest(attribute, value.as_bytes())))
    }
}

/// Whether a value in a trace is a hash.
pub(crate) fn is_hashed(value: &str) -> bool {
    value.starts_with(HASHED)
}

/// Formats a digest as 16 letters, which resemble neither a number nor an address.
pub(super) fn letters(digest: u64) -> String {
    digest.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]).map(letter).collect()
}

fn letter(nibble: u8) -> char {
    char::from(b'a' + nibble % 16)
}

/// The prefix of every hashed value.
const HASHED: &str = "hash:";
