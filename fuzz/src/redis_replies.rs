//! Bytes that a Redis sends: every length is held against its bound, however the bytes are cut.

use redis::Value;
use tidegate::fleet::link::frame::Scanner;

/// Takes replies from the bytes as a whole, and in pieces of as many bytes as the first one says.
pub fn check(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let whole = take_all([bytes]);
    let pieces = take_all(bytes.chunks(usize::from(*piece).max(1)));
    assert_eq!(whole, pieces);
}

/// All replies, and whether the bytes behind them are no reply.
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
