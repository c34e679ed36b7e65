//! What holds for any bytes at all: nothing panics, no bad frame passes for a whole one, what is read can be written
//! and read again, and it does not matter in which pieces frames arrive.

use crate::fuzz::targets::frames;
use crate::golden;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::Index;
use proptest::{prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest};
use tidegate::protocol::{FRAME_BYTES_MAX, FrameSplit, split_frame};

proptest! {
    // A failure prints the bytes, the smallest that fail, and leaves its seed in a file beside this one.
    #![proptest_config(crate::cases(3_000))]

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
    #![proptest_config(crate::cases(300))]

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
                match split_frame(&buffer) {
                    FrameSplit::Frame { payload, consumed } => {
                        received.push(payload.to_vec());
                        buffer.drain(..consumed);
                    }
                    FrameSplit::More { needed } => {
                        prop_assert!(needed > buffer.len());
                        break;
                    }
                    FrameSplit::Broken(fault) => panic!("{fault}"),
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
    // A panic fails the case, and is shrunk.
    frames::check_payload(payload);
    Ok(())
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
