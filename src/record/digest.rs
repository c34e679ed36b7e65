//! Keyed digests under a key that is drawn for one recording and written nowhere: the same text is the same digest
//! within it, and no other recording has it again.

use std::hash::Hasher;
use std::io;

use siphasher::sip::SipHasher24;

use crate::sys;

/// The key of one recording.
#[derive(Clone, Copy)]
pub struct Key([u8; 16]);

/// A secret is not for logs.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives none.
    pub fn draw() -> io::Result<Key> {
        sys::drawn().map(Key)
    }

    /// One of these bytes, to test with.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Key {
        Key(bytes)
    }

    /// The digest of some bytes, apart from those of every other purpose.
    pub(super) fn digest(&self, purpose: &str, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&u64::try_from(purpose.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.write(purpose.as_bytes());
        hasher.write(bytes);
        hasher.finish()
    }

    /// The digest of a text in sixteen letters, small where all of the text is. Texts that differ in their case alone
    /// have digests that do: whoever counts without case counts them as one, as before.
    pub(super) fn letters_of(&self, purpose: &str, text: &str) -> String {
        let small = text.to_lowercase();
        let digest = self.digest(purpose, small.as_bytes());
        let is_small = small == text;
        let case = if is_small { 0 } else { self.digest("case", text.as_bytes()) | 1 };
        let letter = |(place, letter): (usize, char)| {
            if case >> place & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
        };
        letters(digest).chars().enumerate().map(letter).collect()
    }
}

/// A digest in sixteen letters: neither a number nor an address, and told from one at a glance.
pub(super) fn letters(digest: u64) -> String {
    digest.to_be_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]).map(letter).collect()
}

fn letter(nibble: u8) -> char {
    char::from(b'a' + nibble % 16)
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn one_text_is_one_digest_under_one_key_and_purpose() {
        let (key, other) = (Key::from_bytes([1; 16]), Key::from_bytes([2; 16]));
        let ann = key.letters_of("user", "ann");
        assert_eq!((ann.len(), ann == ann.to_lowercase()), (16, true));
        assert_eq!(key.letters_of("user", "ann"), ann);
        for differs in [
            key.letters_of("user", "bob"),
            key.letters_of("ip", "ann"),
            other.letters_of("user", "ann"),
            key.letters_of("user", "Ann"),
        ] {
            assert_ne!(differs, ann);
        }
        assert_ne!(key.letters_of("user", "Ann"), key.letters_of("user", "ANN"));
        assert_eq!(key.letters_of("user", "Ann").to_lowercase(), ann);
        assert_eq!(key.letters_of("user", "ÉCOLE").to_lowercase(), key.letters_of("user", "école"));
    }
}
