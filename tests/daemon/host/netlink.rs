//! Netlink messages about sockets, byte for byte as exchanged with Linux 6.18 on x86-64.
#![cfg(target_endian = "little")]

use tidegate::host::netlink::{
    DiagMessage, Family, UnixSocketId, parse_messages, parse_tcp_queue, parse_unix_listener,
    write_tcp_listeners_request, write_unix_listeners_request, write_unix_queue_request,
};

fn recorded(text: &str) -> Vec<u8> {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

macro_rules! recorded {
    ($name:literal) => {
        recorded(include_str!(concat!("recorded/", $name, ".hex")))
    };
}

const SOCKET: UnixSocketId = UnixSocketId { inode: 8_726_584, cookie: [0x05, 0x10, 0, 0, 0, 0, 0, 0] };

#[test]
fn encodes_requests_as_recorded() {
    let mut request = vec![1, 2, 3];
    write_tcp_listeners_request(&mut request, Family::V4, 18_000, 1);
    assert_eq!(request, recorded!("tcp4_request"));
    write_tcp_listeners_request(&mut request, Family::V6, 18_000, 2);
    assert_eq!(request, recorded!("tcp6_request"));
    write_unix_listeners_request(&mut request, 4);
    assert_eq!(request, recorded!("unix_request"));
    write_unix_queue_request(&mut request, SOCKET, 5);
    assert_eq!(request, recorded!("unix_queue_request"));
}

fn queues(datagram: &[u8], sequence: u32) -> Vec<Option<u32>> {
    let queue = |message| match message {
        DiagMessage::Socket(body) => parse_tcp_queue(body, 18_000),
        other => panic!("{other:?}"),
    };
    let mut all: Vec<_> = parse_messages(datagram, sequence).collect();
    assert_eq!(all.pop(), Some(DiagMessage::Done));
    all.into_iter().map(queue).collect()
}

#[test]
fn parses_tcp_listeners_of_port() {
    assert_eq!(queues(&recorded!("tcp4_answer"), 1), [Some(2), Some(3)]);
    assert_eq!(queues(&recorded!("tcp6_answer"), 2), [Some(2)]);
    assert_eq!(queues(&recorded!("tcp_nobody"), 3), []);
    let answer = recorded!("tcp6_answer");
    let Some(DiagMessage::Socket(body)) = parse_messages(&answer, 2).next() else { panic!() };
    assert_eq!(parse_tcp_queue(body, 18_001), None, "another port's");
    let mut connected = body.to_vec();
    connected[1] = 1;
    assert_eq!(parse_tcp_queue(&connected, 18_000), None, "it does not listen");
}

#[test]
fn parses_unix_listeners_by_inode_and_name() {
    let answer = recorded!("unix_answer");
    let mut listeners = parse_messages(&answer, 4).filter_map(|message| match message {
        DiagMessage::Socket(body) => Some(parse_unix_listener(body).unwrap()),
        _ => None,
    });
    let bound = listeners.next().unwrap();
    assert_eq!(bound.id, SOCKET);
    assert_eq!(bound.name, b"/tmp/tidegate-recorded.sock");
    assert_eq!(bound.file, Some((9_978_013, 254 << 20)));
    assert_eq!(bound.waiting, None);
    let named = listeners.next().unwrap();
    assert_eq!((named.name, named.file), (&b"\0tidegate-recorded"[..], None));
    assert_eq!(listeners.next(), None);

    let answer = recorded!("unix_queue_answer");
    let Some(DiagMessage::Socket(body)) = parse_messages(&answer, 5).next() else { panic!() };
    let listener = parse_unix_listener(body).unwrap();
    assert_eq!((listener.id, listener.waiting), (SOCKET, Some(3)));
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
