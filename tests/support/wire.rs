use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::msgpack::{frame, read};

/// Longer than any reply takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Wire {
    pub(crate) stream: UnixStream,
    buffer: Vec<u8>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Another test may be starting a process, which has a copy of the descriptor for a moment.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Wire {
    pub(crate) fn connect(path: &Path) -> Wire {
        Wire::over(UnixStream::connect(path).unwrap())
    }

    pub(crate) fn over(stream: UnixStream) -> Wire {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Wire { stream, buffer: Vec::new() }
    }

    /// Connects and exchanges HELLO and WELCOME.
    pub(crate) fn greeted(path: &Path) -> Wire {
        let mut wire = Wire::connect(path);
        let welcome = wire.ask(&hello());
        assert_eq!(welcome[0], 0, "{welcome}");
        wire
    }

    pub(crate) fn send(&mut self, value: &Value) {
        self.send_bytes(&frame(value));
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request and returns the next reply.
    pub(crate) fn ask(&mut self, value: &Value) -> Value {
        self.send(value);
        self.hear().expect("a reply")
    }

    /// The number of allowed requests of a user among `hits`.
    pub(crate) fn allowed(&mut self, user: &str, hits: u64) -> u64 {
        (0..hits).filter(|id| verdict_of(&self.ask(&hit(*id, user))) == 0).count() as u64
    }

    /// The next reply; `None` if the daemon closed the connection.
    pub(crate) fn hear(&mut self) -> Option<Value> {
        loop {
            if let Some(reply) = self.read_reply() {
                return Some(reply);
            }
            if self.read_once() == 0 {
                assert!(self.buffer.is_empty(), "it ended inside a frame: {:02x?}", self.buffer);
                return None;
            }
        }
    }

    /// Reads once; returns 0 at the end or after a reset.
    fn read_once(&mut self) -> usize {
        let mut part = [0; 65_536];
        let count = match self.stream.read(&mut part) {
            Ok(count) => count,
            // The kernel does not restart a read that has a timeout.
            Err(error) if error.kind() == ErrorKind::Interrupted => return self.read_once(),
            // The daemon closed with unread input; its replies have been read.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => 0,
            Err(error) => panic!("no reply and no end within {PATIENCE:?}: {error}"),
        };
        self.buffer.extend_from_slice(&part[..count]);
        count
    }

    /// Takes the first complete reply of the buffer.
    fn read_reply(&mut self) -> Option<Value> {
        let length = u32::from_be_bytes(self.buffer.first_chunk::<4>().copied()?) as usize;
        let value = read(self.buffer.get(4..4 + length)?);
        self.buffer.drain(..4 + length);
        Some(value)
    }

    /// Whether there is input.
    pub(crate) fn has_more(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut watched = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    /// The replies of a single read.
    pub(crate) fn hear_together(&mut self) -> Vec<Value> {
        self.read_once();
        std::iter::from_fn(|| self.read_reply()).collect()
    }

    pub(crate) fn hear_all(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.hear()).collect()
    }

    /// Shuts down writing.
    pub(crate) fn end_writing(&self) {
        // The daemon may have closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Whether the daemon still serves this connection.
    pub(crate) fn is_served(&mut self) -> bool {
        if self.stream.write_all(&frame(&json!([8, 4_711]))).is_err() {
            return false;
        }
        self.hear() == Some(json!([2, 4_711, true]))
    }

    /// Asserts that the daemon closes the connection without another reply.
    pub(crate) fn assert_ended(&mut self) {
        assert_eq!(self.hear(), None);
    }

    pub(crate) fn assert_served(&mut self) {
        assert!(self.is_served(), "the connection is served");
    }
}

/// A minimal HELLO.
pub(crate) fn hello() -> Value {
    json!([0, 1, 1])
}

/// A HELLO of a session, with more info.
pub(crate) fn hello_of(session: u8, mut info: Value) -> Value {
    info["session"] = json!({"bin": format!("{session:02x}").repeat(16)});
    json!([0, 1, 1, info])
}

pub(crate) fn hit(id: u64, user: &str) -> Value {
    json!([3, id, "api", [["user", user]]])
}

/// The id and the code of an ERROR.
pub(crate) fn error_of(reply: &Value) -> (Option<u64>, u64) {
    assert_eq!(reply[0], 3, "an ERROR: {reply}");
    assert!(!reply[3].as_str().unwrap().is_empty(), "it says why: {reply}");
    (reply[1].as_u64(), reply[2].as_u64().unwrap())
}

pub(crate) fn verdict_of(reply: &Value) -> u64 {
    assert_eq!(reply[0], 1, "a DECISION: {reply}");
    reply[2].as_u64().unwrap()
}
