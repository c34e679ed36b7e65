//! Replies of Redis: every length is checked against its bound, independent of how reads split the bytes.

use redis::Value;
use tidegate::fleet::link::frame::Scanner;

/// Scans the bytes at once, and in pieces of the length of the first byte.
pub fn check(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let whole = take_all([bytes]);
    let pieces = take_all(bytes.chunks(usize::from(*piece).max(1)));
    assert_eq!(whole, pieces);
}

/// All replies, and whether the remaining bytes are malformed.
fn take_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Value>, bool) {
    let (mut scanner, mut incoming, mut values) = (Scanner::default(), Vec::new(), Vec::new());
    for piece in pieces {
        incoming.extend_from_slice(piece);
        loop {
            match scanner.take(&mut incoming) {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(_) => return (values, true),
            }
        }
    }
    (values, false)
}
