//! Tests servers with false or invalid replies: each costs a bounded buffer and its connection.

use std::sync::atomic::Ordering;

use tidegate::fleet::link::{FailureClass, LinkError, RedisLink};

use super::liar::Liar;
use super::{command, down, echo, failure, is_down_for, one, options, until, up};

fn link_to(liar: &Liar) -> RedisLink {
    RedisLink::start(options(&liar.url()), Vec::new())
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn closes_on_oversized_replies_within_memory_bound() {
    let zeros = vec![b'0'; 1 << 16];
    let table: &[(&str, Vec<u8>, Vec<u8>)] = &[
        ("512 MB", b"$536870912\r\n".to_vec(), zeros.clone()),
        ("a bulk string over the bound", b"$524289\r\n".to_vec(), zeros.clone()),
        ("an endless line", b"+".to_vec(), zeros.clone()),
        ("an endless number", b":".to_vec(), zeros),
        ("nesting", Vec::new(), b"*1\r\n".repeat(1 << 14)),
        ("elements", b"*1000000000\r\n".to_vec(), b":1\r\n".repeat(1 << 14)),
        ("many elements of elements", Vec::new(), b"*16000\r\n:1\r\n".to_vec()),
        (
            "small parts of much",
            b"*16000\r\n".to_vec(),
            [b"$4000\r\n".as_slice(), &[b'x'; 4000], b"\r\n"].concat(),
        ),
        ("another protocol", b"HTTP/1.1 200 OK\r\n".to_vec(), b"x\r\n".to_vec()),
        ("pushes", b">2\r\n+message\r\n+x\r\n".to_vec(), b">2\r\n+message\r\n+x\r\n".repeat(1 << 12)),
        ("more replies than questions", b"$1\r\nx\r\n".to_vec(), b":1\r\n".repeat(1 << 14)),
    ];
    for (name, first, then) in table {
        let liar = Liar::start(first.clone(), then.clone(), true);
        let link = link_to(&liar);
        let before = resident();
        let mut result = Ok(redis::Value::Nil);
        // On a busy machine a timeout may close the connection first: the next one is longer.
        for _ in 0..5 {
            up(&link).await;
            result = link.send(one(&link).id, &command(&echo(), &[], &["x"])).await;
            if result.as_ref().err().is_none_or(|error| error.class != FailureClass::Timeout) {
                break;
            }
        }
        until(name, || is_down_for(&link, FailureClass::Protocol)).await;
        let is_broken = |error: LinkError| error.class == FailureClass::Protocol && error.may_have_run;
        assert!(result.map_or_else(is_broken, |_| *name == "more replies than questions"), "{name}");
        // Other tests of this process use memory too; half a gigabyte would still show.
        let grown = resident().saturating_sub(before);
        assert!(grown < 32 << 20, "{name}: {grown} bytes more");
        let written = liar.written.load(Ordering::Relaxed);
        assert!(written < 4 << 20, "{name}: {written} bytes were taken");
    }
}

#[tokio::test]
async fn rejects_unexpected_greeting() {
    let zeros = vec![b'0'; 1 << 16];
    for text in ["+OK\r\n", ":1\r\n", "$4\r\nPONG\r\n", "*0\r\n", "\r\n", "$536870912\r\n"] {
        let then = if text.starts_with("$5") { zeros.clone() } else { Vec::new() };
        let liar = Liar::start(text.as_bytes().to_vec(), then, false);
        let link = link_to(&liar);
        until(text, || is_down_for(&link, FailureClass::Protocol)).await;
        assert_eq!(one(&link).connections, 0);
    }
    let liar = Liar::start(b"-WRONG hush hush\r\n".to_vec(), Vec::new(), false);
    let link = link_to(&liar);
    until("an odd error", || is_down_for(&link, FailureClass::Other)).await;
    assert_eq!(down(&link).unwrap().to_string(), "other: the server says WRONG");
}

#[tokio::test]
async fn times_out_server_that_drips_bytes() {
    let liar = Liar::start(b"$1000\r\n".to_vec(), Vec::new(), true);
    let link = link_to(&liar);
    up(&link).await;
    let reply = link.send(one(&link).id, &command(&echo(), &[], &["x"])).await;
    assert_eq!(failure(reply), (FailureClass::Timeout, true));
    until("it is left", || liar.connections.load(Ordering::Relaxed) > 1).await;
}
