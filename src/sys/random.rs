//! Random bytes from the kernel.

use std::io;

/// Returns `BYTES` random bytes.
///
/// # Errors
/// `getrandom` fails.
pub fn random_bytes<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
