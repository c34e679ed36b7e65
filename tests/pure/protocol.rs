//! What holds for any bytes at all: nothing panics, no bad frame passes for a whole one, what is read can be written
//! and read again, and it does not matter in which pieces frames arrive.

use crate::golden;
use std::collections::HashSet;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::Index;
use proptest::test_runner::Config;
use proptest::{prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest};
use tidegate::protocol::{
    Code, Descriptors, FRAME_BYTES_MAX, ReplyScratch, Split, decode_first, decode_reply, decode_request,
    encode_reply, encode_request, split,
};

proptest! {
    // A failure prints the bytes, the smallest that fail, and leaves its seed in a file beside this one.
    #![proptest_config(Config { cases: 10_000, ..Config::default() })]

    #[test]
    fn any_bytes(payload in vec(any::<u8>(), 0..200)) {
        holds(&payload)?;
    }

    #[test]
    fn any_bytes_that_look_like_messages(payload in vec(any_piece(), 0..12)) {
        holds(&payload.concat())?;
    }

    #[test]
    fn any_frame_with_a_few_changes(which in any::<Index>(), changes in vec(any_change(), 1..4)) {
        let mut payload = which.get(&GOOD).clone();
        for change in &changes {
            change.apply(&mut payload);
        }
        payload.truncate(FRAME_BYTES_MAX);
        holds(&payload)?;
    }
}

proptest! {
    #![proptest_config(Config { cases: 500, ..Config::default() })]

    #[test]
    fn any_pieces_are_the_same_frames(which in vec(any::<Index>(), 1..8), pieces in vec(1usize..300, 1..60)) {
        let sent: Vec<&Vec<u8>> = which.iter().map(|which| which.get(&GOOD)).collect();
        let mut stream = Vec::new();
        for payload in &sent {
            stream.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
            stream.extend(*payload);
        }
        let mut received: Vec<Vec<u8>> = Vec::new();
        let (mut buffer, mut stream) = (Vec::new(), stream.as_slice());
        for piece in pieces.iter().cycle() {
            let (now, later) = stream.split_at((*piece).min(stream.len()));
            buffer.extend(now);
            stream = later;
            loop {
                match split(&buffer) {
                    Split::Frame { payload, consumed } => {
                        received.push(payload.to_vec());
                        buffer.drain(..consumed);
                    }
                    Split::More { needed } => {
                        prop_assert!(needed > buffer.len());
                        break;
                    }
                    Split::Broken(fault) => panic!("{fault}"),
                }
            }
            if stream.is_empty() {
                break;
            }
        }
        prop_assert_eq!(received.iter().collect::<Vec<_>>(), sent);
    }
}

static GOOD: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| golden::good().iter().map(|vector| golden::bytes(&vector.hex)[4..].to_vec()).collect());

fn holds(payload: &[u8]) -> Result<(), proptest::test_runner::TestCaseError> {
    prop_assume!(!payload.is_empty());
    let whole = whole_message(payload);
    let mut descriptors = Descriptors::new();
    match decode_request(payload, &mut descriptors) {
        Ok(request) => {
            prop_assert!(whole, "passes for whole");
            let mut written = Vec::new();
            // What a frame at the bound left out may be written out.
            if encode_request(&mut written, &request, &descriptors).is_ok() {
                let mut again = Descriptors::new();
                let reread = decode_request(&written[4..], &mut again);
                prop_assert_eq!(reread, Ok(request));
                prop_assert_eq!(again, descriptors);
            } else {
                prop_assert!(payload.len() + 2 > FRAME_BYTES_MAX);
            }
        }
        Err(fault) => {
            prop_assert!(whole || fault.code == Code::Malformed, "{} where nothing is whole", fault.code);
            prop_assert_eq!(decode_request(payload, &mut descriptors), Err(fault));
            prop_assert!(fault.to_string().len() < 256);
        }
    }
    let first = decode_first(payload);
    prop_assert!(whole || first.is_err_and(|fault| fault.code == Code::Malformed));

    let mut scratch = ReplyScratch::default();
    if let Ok(reply) = decode_reply(payload, &mut scratch) {
        prop_assert!(whole, "passes for whole");
        let mut written = Vec::new();
        encode_reply(&mut written, &reply);
        let Split::Frame { payload, consumed } = split(&written) else { panic!("{reply:?}") };
        prop_assert_eq!(consumed, written.len());
        let mut scratch = ReplyScratch::default();
        let reread = decode_reply(payload, &mut scratch);
        // A text of kilobytes may be cut; what else there is stays.
        prop_assert!(reread == Ok(reply) || payload.len() > 1_000, "{:?} became {:?}", reply, reread);
    }
    Ok(())
}

/// The rules of well-formedness, told once more and with no thought of cost.
fn whole_message(payload: &[u8]) -> bool {
    let array = matches!(payload.first(), Some(0x90..=0x9f | 0xdc | 0xdd));
    array && whole_value(payload, 1).is_some_and(<[u8]>::is_empty)
}

/// What follows the first value, if that is whole.
fn whole_value(bytes: &[u8], depth: usize) -> Option<&[u8]> {
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
        0x90..=0x9f => whole_values(usize::from(head & 15), false, rest, depth),
        0xdc | 0xdd => {
            sized(2 << (head - 0xdc)).and_then(|(count, rest)| whole_values(count, false, rest, depth))
        }
        0x80..=0x8f => whole_values(usize::from(head & 15), true, rest, depth),
        0xde | 0xdf => {
            sized(2 << (head - 0xde)).and_then(|(count, rest)| whole_values(count, true, rest, depth))
        }
        _ => None,
    }
}

fn whole_values(count: usize, keyed: bool, mut rest: &[u8], depth: usize) -> Option<&[u8]> {
    let mut keys = HashSet::new();
    for _ in 0..count {
        if keyed {
            let after = whole_value(rest, depth + 1)?;
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
        rest = whole_value(rest, depth + 1)?;
    }
    Some(rest)
}

/// A change of a frame.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Cut(Index),
    Repeat(Index, usize),
    Splice(Index, Index, Index, usize),
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<Index>(), any_piece()).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<Index>(), 1usize..8).prop_map(|(at, count)| Change::Remove(at, count)),
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), 1usize..40).prop_map(|(at, count)| Change::Repeat(at, count)),
        (any::<Index>(), any::<Index>(), any::<Index>(), 1usize..40)
            .prop_map(|(at, which, from, count)| Change::Splice(at, which, from, count)),
    ]
}

impl Change {
    fn apply(&self, payload: &mut Vec<u8>) {
        if payload.is_empty() {
            return;
        }
        match self {
            Change::Set(at, byte) => {
                let at = at.index(payload.len());
                payload[at] = *byte;
            }
            Change::Insert(at, bytes) => {
                let at = at.index(payload.len());
                payload.splice(at..at, bytes.iter().copied());
            }
            Change::Remove(at, count) => {
                let at = at.index(payload.len());
                payload.drain(at..(at + count).min(payload.len()));
            }
            Change::Cut(at) => payload.truncate(at.index(payload.len())),
            Change::Repeat(at, count) => {
                let at = at.index(payload.len());
                let part = payload[at..(at + count).min(payload.len())].to_vec();
                payload.splice(at..at, part);
            }
            Change::Splice(at, which, from, count) => {
                let other = which.get(&GOOD);
                let from = from.index(other.len());
                let part = other[from..(from + count).min(other.len())].to_vec();
                let at = at.index(payload.len());
                payload.splice(at..at, part);
            }
        }
    }
}

/// A few bytes of MessagePack, or nearly.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        (0x90u8..0x9f).prop_map(|head| vec![head]),
        (0x80u8..0x8f).prop_map(|head| vec![head]),
        (0u8..10).prop_map(|small| vec![small]),
        any::<u64>().prop_map(|wide| [&[0xcf][..], &wide.to_be_bytes()].concat()),
        any::<i32>().prop_map(|wide| [&[0xd2][..], &wide.to_be_bytes()].concat()),
        "[a-z:/é]{0,4}"
            .prop_map(|text| [&[0xa0 | u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat()),
        prop_oneof!["idem", "all", "missed", "timeout", "pool", "slots", "tokens", "unit"].prop_map(|text| [
            &[0xa0 | u8::try_from(text.len()).unwrap()][..],
            text.as_bytes()
        ]
        .concat()),
        (0xc0u8..0xe0, any::<u8>(), any::<u8>()).prop_map(|(head, one, two)| vec![head, one, two]),
    ]
}
