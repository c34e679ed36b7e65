//! Wrong, old and cut netlink messages about sockets, as exchanged with Linux 6.18 on x86-64; `live` has whole ones of this kernel.
#![cfg(target_endian = "little")]

use tidegate::host::netlink::{DiagMessage, parse_messages, parse_tcp_queue, parse_unix_listener};

fn recorded(text: &str) -> Vec<u8> {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

macro_rules! recorded {
    ($name:literal) => {
        recorded(include_str!(concat!("recorded/", $name, ".hex")))
    };
}

#[test]
fn parses_errno_of_refusals() {
    let all = |datagram: &[u8], sequence| -> Vec<i32> {
        let refused = |message| match message {
            DiagMessage::Error(error) => error,
            other => panic!("{other:?}"),
        };
        parse_messages(datagram, sequence).map(refused).collect()
    };
    assert_eq!(all(&recorded!("refused"), 7), [22], "EINVAL");
    assert_eq!(all(&recorded!("unix_queue_gone"), 6), [116], "ESTALE: the inode came again");
}

#[test]
fn ignores_replies_of_earlier_sequence() {
    assert_eq!(parse_messages(&recorded!("tcp4_answer"), 9).count(), 0);
    let both = [recorded!("tcp4_answer"), recorded!("tcp_nobody")].concat();
    assert_eq!(parse_messages(&both, 3).collect::<Vec<_>>(), [DiagMessage::Done]);
}

#[test]
fn skips_truncated_messages() {
    for (answer, sequence) in [(recorded!("tcp4_answer"), 1), (recorded!("unix_answer"), 4)] {
        let whole = parse_messages(&answer, sequence).count();
        for cut in 0..answer.len() {
            assert!(parse_messages(&answer[..cut], sequence).count() < whole, "{cut}");
        }
        for message in parse_messages(&answer, sequence) {
            let DiagMessage::Socket(body) = message else { continue };
            for cut in 0..body.len() {
                // Any result, but no read past the end and no endless loop.
                let _ = (parse_tcp_queue(&body[..cut], 18_000), parse_unix_listener(&body[..cut]));
            }
        }
    }
    let mut endless = recorded!("tcp_nobody");
    endless[0] = 0;
    assert_eq!(parse_messages(&endless, 3).count(), 0, "a message of no length does not come for ever");
    let mut attribute = recorded!("unix_queue_answer").split_off(16);
    attribute[16] = 0;
    assert_eq!(parse_unix_listener(&attribute), None, "nor an attribute");
}
