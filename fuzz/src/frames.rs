//! One frame payload: malformed ones are rejected, and decoded ones can be encoded and decoded again.

use std::collections::HashSet;

use tidegate::protocol::{
    Code, DescriptorList, FRAME_BYTES_MAX, FrameSplit, ReplyScratch, decode_first, decode_reply,
    decode_request, encode_reply, encode_request, split_frame,
};

/// Decodes the bytes as a frame with its length, and as a payload in each direction.
pub fn check(bytes: &[u8]) {
    match split_frame(bytes) {
        FrameSplit::Frame { payload, consumed } => {
            assert!(payload.len() <= FRAME_BYTES_MAX && consumed <= bytes.len());
        }
        FrameSplit::More { needed } => assert!(needed > bytes.len()),
        FrameSplit::Broken(fault) => assert!(fault.code.closes(), "{fault}"),
    }
    let payload = &bytes[..bytes.len().min(FRAME_BYTES_MAX)];
    if !payload.is_empty() {
        check_payload(payload);
    }
}

/// Decodes a payload of valid length as a request and as a reply.
fn check_payload(payload: &[u8]) {
    let whole = is_whole_message(payload);
    let mut descriptors = DescriptorList::new();
    match decode_request(payload, &mut descriptors) {
        Ok(request) => {
            assert!(whole, "accepts a malformed frame");
            let mut written = Vec::new();
            // Encoding may write a default that a frame at the size bound omits.
            if encode_request(&mut written, &request, &descriptors).is_ok() {
                let mut again = DescriptorList::new();
                let reread = decode_request(&written[4..], &mut again);
                assert_eq!(reread, Ok(request));
                assert_eq!(again, descriptors);
            } else {
                assert!(payload.len() + 2 > FRAME_BYTES_MAX);
            }
        }
        Err(fault) => {
            assert!(whole || fault.code == Code::Malformed, "{} of a malformed frame", fault.code);
            assert_eq!(decode_request(payload, &mut descriptors), Err(fault));
            assert!(fault.to_string().len() < 256);
        }
    }
    let first = decode_first(payload);
    assert!(whole || first.is_err_and(|fault| fault.code == Code::Malformed));
    check_reply(payload, whole);
}

fn check_reply(payload: &[u8], whole: bool) {
    let mut scratch = ReplyScratch::default();
    let Ok(reply) = decode_reply(payload, &mut scratch) else { return };
    assert!(whole, "accepts a malformed reply");
    let mut written = Vec::new();
    encode_reply(&mut written, &reply);
    let FrameSplit::Frame { payload, consumed } = split_frame(&written) else { panic!("{reply:?}") };
    assert_eq!(consumed, written.len());
    let mut scratch = ReplyScratch::default();
    let reread = decode_reply(payload, &mut scratch);
    // Encoding may cut strings of kilobytes; all else is preserved.
    assert!(reread == Ok(reply) || payload.len() > 1_000, "{reply:?} became {reread:?}");
}

/// Whether a payload is well-formed, by a minimal second implementation.
fn is_whole_message(payload: &[u8]) -> bool {
    let array = matches!(payload.first(), Some(0x90..=0x9f | 0xdc | 0xdd));
    array && skip_value(payload, 1).is_some_and(<[u8]>::is_empty)
}

/// The bytes after the first value, if that is complete.
fn skip_value(bytes: &[u8], depth: usize) -> Option<&[u8]> {
    let (&head, rest) = bytes.split_first()?;
    let sized = |width: usize| {
        let length = rest.get(..width)?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
        Some((length, &rest[width..]))
    };
    let text = |length: usize, rest: &'_ [u8]| std::str::from_utf8(rest.get(..length)?).ok().map(str::len);
    match head {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => Some(rest),
        0xcc..=0xcf => rest.get(1 << (head - 0xcc)..),
        0xd0..=0xd3 => rest.get(1 << (head - 0xd0)..),
        0xc4..=0xc6 => sized(1 << (head - 0xc4)).and_then(|(length, rest)| rest.get(length..)),
        0xa0..=0xbf => rest.get(text(usize::from(head & 31), rest)?..),
        0xd9..=0xdb => sized(1 << (head - 0xd9)).and_then(|(length, rest)| rest.get(text(length, rest)?..)),
        _ if depth > 4 => None,
        0x90..=0x9f => skip_values(usize::from(head & 15), false, rest, depth),
        0xdc | 0xdd => {
            sized(2 << (head - 0xdc)).and_then(|(count, rest)| skip_values(count, false, rest, depth))
        }
        0x80..=0x8f => skip_values(usize::from(head & 15), true, rest, depth),
        0xde | 0xdf => {
            sized(2 << (head - 0xde)).and_then(|(count, rest)| skip_values(count, true, rest, depth))
        }
        _ => None,
    }
}

fn skip_values(count: usize, keyed: bool, mut rest: &[u8], depth: usize) -> Option<&[u8]> {
    let mut keys = HashSet::new();
    for _ in 0..count {
        if keyed {
            let after = skip_value(rest, depth + 1)?;
            let skipped = match rest.first()? {
                0xa0..=0xbf => 1,
                0xd9 => 2,
                0xda => 3,
                0xdb => 5,
                _ => return None,
            };
            let key = &rest[skipped..rest.len() - after.len()];
            if !keys.insert(key) {
                return None;
            }
            rest = after;
        }
        rest = skip_value(rest, depth + 1)?;
    }
    Some(rest)
}
