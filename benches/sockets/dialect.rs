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

    /// The most requests that a server takes at once on one connection.
    fn in_flight_max(&self) -> u64 {
        u64::MAX
    }

    /// Appends the next request.
    fn request(&mut self, out: &mut Vec<u8>);

    /// The length of the first whole reply in `input`, if there is one.
    fn reply(&mut self, input: &[u8]) -> io::Result<Option<usize>>;
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

    fn reply(&mut self, input: &[u8]) -> io::Result<Option<usize>> {
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

/// A protocol of requests and replies in lines: those of Redis and memcached.
pub(crate) struct Lines {
    users: Users,
    request: Write,
    /// Lines of a reply.
    lines: usize,
    accepts: fn(&[u8]) -> bool,
}

/// Appends the request of a caller.
type Write = Box<dyn Fn(&mut Vec<u8>, u32) + Send>;

impl Dialect for Lines {
    fn request(&mut self, out: &mut Vec<u8>) {
        (self.request)(out, self.users.draw());
    }

    fn reply(&mut self, input: &[u8]) -> io::Result<Option<usize>> {
        let Some(reply) = lines(input, self.lines) else { return Ok(None) };
        if (self.accepts)(reply) {
            Ok(Some(reply.len()))
        } else {
            Err(io::Error::other(format!("an unexpected reply: {}", String::from_utf8_lossy(reply))))
        }
    }
}

/// The GCRA script by EVALSHA.
pub(crate) fn script(sha: &str, users: Users) -> Lines {
    let (sha, burst) = (sha.to_owned(), workload::BURST.to_string());
    let interval_us = (workload::REFILL_SECONDS * 1_000_000).to_string();
    let request = move |out: &mut Vec<u8>, user| {
        command(out, &["EVALSHA", &sha, "1", &key(user), &interval_us, &burst, "1"]);
    };
    Lines { users, request: Box::new(request), lines: 6, accepts: |reply| reply.starts_with(b"*5\r\n:1\r\n") }
}

/// Writes each caller's state into Redis as the script would: faster than a million script calls.
pub(crate) fn script_states(unix_us: u64) -> Lines {
    let arrival_us = (unix_us + workload::REFILL_SECONDS * 1_000_000).to_string();
    let request = move |out: &mut Vec<u8>, user| {
        command(out, &["SET", &key(user), &arrival_us, "EX", FILL_SECONDS]);
    };
    let users = Users::InOrder(0);
    Lines { users, request: Box::new(request), lines: 1, accepts: |reply| reply == b"+OK\r\n" }
}

/// INCR of Redis: a counter alone, without a limit and without an end.
pub(crate) fn increment(users: Users) -> Lines {
    let request = |out: &mut Vec<u8>, user| command(out, &["INCR", &key(user)]);
    Lines { users, request: Box::new(request), lines: 1, accepts: |reply| reply.starts_with(b":") }
}

/// THROTTLE of throttlecrab: a GCRA.
pub(crate) fn throttle(users: Users) -> Lines {
    let (burst, period) = (workload::BURST.to_string(), workload::REFILL_SECONDS.to_string());
    let request =
        move |out: &mut Vec<u8>, user| command(out, &["THROTTLE", &key(user), &burst, "1", &period, "1"]);
    Lines { users, request: Box::new(request), lines: 6, accepts: |reply| reply.starts_with(b"*5\r\n:1\r\n") }
}

/// HIT of the daemon's RESP adapter.
pub(crate) fn hit(users: Users) -> Lines {
    let request = |out: &mut Vec<u8>, user| {
        command(out, &["HIT", workload::DOMAIN, "user", &workload::user(user)]);
    };
    Lines {
        users,
        request: Box::new(request),
        lines: 10,
        accepts: |reply| reply.starts_with(b"*7\r\n:0\r\n"),
    }
}

/// `incr` of memcached: a counter alone.
pub(crate) fn memcached(users: Users) -> Lines {
    let request =
        |out: &mut Vec<u8>, user| out.extend_from_slice(format!("incr {} 1\r\n", key(user)).as_bytes());
    Lines { users, request: Box::new(request), lines: 1, accepts: |reply| reply[0].is_ascii_digit() }
}

/// A counter for each caller, as `incr` makes none.
pub(crate) fn memcached_counters() -> Lines {
    let request = |out: &mut Vec<u8>, user| {
        out.extend_from_slice(format!("set {} 0 0 1\r\n0\r\n", key(user)).as_bytes());
    };
    let users = Users::InOrder(0);
    Lines { users, request: Box::new(request), lines: 1, accepts: |reply| reply == b"STORED\r\n" }
}

/// The caller's key in a store.
fn key(user: u32) -> String {
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

/// Longer than any run, so that no key expires.
const FILL_SECONDS: &str = "86400";
