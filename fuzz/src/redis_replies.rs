//! Replies of Redis: no bytes make the parser panic, and well-formed ones are parsed independent of how reads split them.

use redis::Value;
use tidegate::fleet::link::ReplyParser;

/// Parses the bytes at once, and in pieces of the length of the first byte.
pub fn check(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let (values, is_malformed) = parse_all([bytes]);
    let pieces = parse_all(bytes.chunks(usize::from(*piece).max(1)));
    // A kind that does not exist, last in a piece and inside of an array, may be noticed with later bytes only.
    if !is_malformed {
        assert_eq!((values, false), pieces);
    }
}

/// All replies, and whether the remaining bytes are malformed.
fn parse_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Value>, bool) {
    let (mut parser, mut values) = (ReplyParser::default(), Vec::new());
    for mut piece in pieces {
        loop {
            match parser.next(&mut piece) {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(_) => return (values, true),
            }
        }
    }
    (values, false)
}
