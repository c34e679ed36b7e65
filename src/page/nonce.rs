//! The nonce by which the content security policy of a page allows the page's own style and script. Used once.

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 128 random bits in hexadecimal, which injected content cannot guess. Empty without randomness: the policy
/// then allows nothing, and the page is unstyled.
#[must_use]
pub fn nonce() -> String {
    let mut bytes = [0; 16];
    match getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
        Ok(count) if count == bytes.len() => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => String::new(),
    }
}
