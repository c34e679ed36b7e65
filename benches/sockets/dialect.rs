//! Protocols of the load generator: writes requests, counts replies.
//!
//! Replies are checked as they are counted, since refusals and errors would be fast.

use std::io;

use crate::workload::{self, FRAME_HEADER_BYTES, Hits, Users};

/// The requests of one connection, and the framing of its replies.
pub(crate) trait Dialect {
    /// Bytes to send first, if any.
    fn greeting(&self) -> Option<Vec<u8>> {
        None
    }

    /// Appends the next request.
    fn request(&mut self, out: &mut Vec<u8>);

    /// The length of the first whole reply in `input`, if there is one.
    fn reply(&self, input: &[u8]) -> io::Result<Option<usize>>;
}

/// `hit` in tidegate's frames. The echo server answers with a copy of one of the daemon's replies, so that
/// the client does the same work for both.
#[derive(Debug)]
pub(crate) struct Frames {
    hits: Hits,
    greets: bool,
}

impl Frames {
    /// For the daemon, which expects a HELLO.
    pub(crate) fn to_daemon(users: Users) -> Frames {
        Frames { hits: Hits::new(users), greets: true }
    }

    /// For the echo server, which does not.
    pub(crate) fn to_echo(users: Users) -> Frames {
        Frames { hits: Hits::new(users), greets: false }
    }
}

impl Dialect for Frames {
    fn greeting(&self) -> Option<Vec<u8>> {
        self.greets.then(workload::hello)
    }

    fn request(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.hits.next());
    }

    fn reply(&self, input: &[u8]) -> io::Result<Option<usize>> {
        let Some(frame) = frame(input) else { return Ok(None) };
        // Kind DECISION, an id of four bytes, verdict ALLOW; later fields have no fixed offset.
        if frame.get(KIND_AT) == Some(&DECISION) && frame.get(VERDICT_AT) == Some(&ALLOW) {
            Ok(Some(frame.len()))
        } else {
            Err(io::Error::other(format!("expected an ALLOW, received {}", hex(frame))))
        }
    }
}

/// The first whole frame in `input`, with its length.
pub(crate) fn frame(input: &[u8]) -> Option<&[u8]> {
    let (length, _) = input.split_first_chunk::<FRAME_HEADER_BYTES>()?;
    input.get(..FRAME_HEADER_BYTES + u32::from_be_bytes(*length) as usize)
}

/// The GCRA script by EVALSHA, in RESP.
#[derive(Debug)]
pub(crate) struct Script {
    sha: String,
    interval_us: String,
    burst: String,
    users: Users,
}

impl Script {
    pub(crate) fn new(sha: &str, users: Users) -> Script {
        Script {
            sha: sha.to_owned(),
            interval_us: (workload::REFILL_SECONDS * 1_000_000).to_string(),
            burst: workload::BURST.to_string(),
            users,
        }
    }
}

impl Dialect for Script {
    fn request(&mut self, out: &mut Vec<u8>) {
        let key = redis_key(self.users.draw());
        command(out, &["EVALSHA", &self.sha, "1", &key, &self.interval_us, &self.burst, "1"]);
    }

    fn reply(&self, input: &[u8]) -> io::Result<Option<usize>> {
        let Some(reply) = lines(input, SCRIPT_REPLY_LINES) else { return Ok(None) };
        if reply.starts_with(b"*5\r\n:1\r\n") {
            Ok(Some(reply.len()))
        } else {
            Err(io::Error::other(format!("expected an allowed request: {}", String::from_utf8_lossy(reply))))
        }
    }
}

/// Writes each caller's state into Redis as the script would: faster than a million script calls.
#[derive(Debug)]
pub(crate) struct Fill {
    arrival_us: String,
    users: Users,
}

impl Fill {
    pub(crate) fn new(unix_us: u64) -> Fill {
        let arrival_us = unix_us + workload::REFILL_SECONDS * 1_000_000;
        Fill { arrival_us: arrival_us.to_string(), users: Users::InOrder(0) }
    }
}

impl Dialect for Fill {
    fn request(&mut self, out: &mut Vec<u8>) {
        let key = redis_key(self.users.draw());
        command(out, &["SET", &key, &self.arrival_us, "EX", FILL_SECONDS]);
    }

    fn reply(&self, input: &[u8]) -> io::Result<Option<usize>> {
        match lines(input, 1) {
            None => Ok(None),
            Some(b"+OK\r\n") => Ok(Some(5)),
            Some(line) => {
                Err(io::Error::other(format!("expected OK, received {}", String::from_utf8_lossy(line))))
            }
        }
    }
}

fn redis_key(user: u32) -> String {
    format!("{}:per-user:{}", workload::DOMAIN, workload::user(user))
}

/// Appends a RESP command: an array of bulk strings.
pub(crate) fn command(out: &mut Vec<u8>, words: &[&str]) {
    use std::io::Write;
    // Writing to a Vec does not fail.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n{word}\r\n", word.len());
    }
}

fn lines(input: &[u8], count: usize) -> Option<&[u8]> {
    let ends = input.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let (end, _) = { ends }.nth(count - 1)?;
    Some(&input[..=end])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes the output of [`hex`].
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or(0) as u8;
    text.as_bytes().chunks_exact(2).map(|pair| digit(&pair[0]) << 4 | digit(&pair[1])).collect()
}

// Offsets in a DECISION: after the length, `[1, id, verdict, …]` with an id of 1 + 4 bytes.
const KIND_AT: usize = FRAME_HEADER_BYTES + 1;
const VERDICT_AT: usize = KIND_AT + 1 + 5;
const DECISION: u8 = 1;
const ALLOW: u8 = 0;

/// `*5` and five integers.
const SCRIPT_REPLY_LINES: usize = 6;

/// Longer than any run, so that no key expires.
const FILL_SECONDS: &str = "86400";
