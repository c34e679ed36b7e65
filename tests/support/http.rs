//! A minimal HTTP client: one request and its response, over a Unix socket or TCP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::daemon::Daemon;
use super::wire::PATIENCE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Parses a response.
    pub(crate) fn read(bytes: &[u8]) -> Option<Answer> {
        let text = String::from_utf8(bytes.to_vec()).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The error message in the body.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().expect("an error").to_owned()
    }
}

/// The default admin socket of a test's daemon.
pub(crate) fn admin_socket(daemon: &Daemon) -> PathBuf {
    daemon.plan.path("t.admin.sock")
}

pub(crate) fn get(daemon: &Daemon, path: &str) -> Answer {
    ask(daemon, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"))
}

/// The answer of the listener at this path to `GET`, if there is one.
pub(crate) fn get_at(socket: &Path, path: &str) -> Option<Answer> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    Answer::read(&say(UnixStream::connect(socket).ok()?, request.as_bytes()))
}

pub(crate) fn post(daemon: &Daemon, path: &str, body: &str) -> Answer {
    let length = body.len();
    ask(daemon, &format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"))
}

pub(crate) fn ask(daemon: &Daemon, request: &str) -> Answer {
    let answer = say(UnixStream::connect(admin_socket(daemon)).unwrap(), request.as_bytes());
    Answer::read(&answer).unwrap_or_else(|| panic!("{request}: {:?}", String::from_utf8_lossy(&answer)))
}

/// The value of a metric; `None` if the daemon has none of this name.
pub(crate) fn metric(daemon: &Daemon, name: &str) -> Option<f64> {
    let metrics = get(daemon, "/metrics").body;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

/// Requests a page over TCP.
pub(crate) fn get_over_tcp(port: u16, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Answer::read(&exchange(stream, request.as_bytes())).expect("an answer")
}

/// Sends bytes and returns all that the server sends until it closes.
pub(crate) fn say(stream: UnixStream, bytes: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(stream, bytes)
}

fn exchange(mut stream: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut part = [0; 4_096];
    while let Ok(count @ 1..) = stream.read(&mut part) {
        answer.extend_from_slice(&part[..count]);
    }
    answer
}
