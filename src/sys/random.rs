//! What the kernel draws at random.

use std::io;

/// So many bytes.
///
/// # Errors
/// The kernel gives none.
pub fn drawn<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
