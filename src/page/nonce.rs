//! What a page's own style and script say to be let in by its policy. It is nobody's secret for long.

use rustix::rand::{GetRandomFlags, getrandom};

/// Not to be guessed by what somebody could put into the page. Without randomness it is empty, and the page plain: nothing
/// is let in.
#[must_use]
pub fn nonce() -> String {
    let mut bytes = [0; 16];
    match getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
        Ok(count) if count == bytes.len() => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => String::new(),
    }
}
