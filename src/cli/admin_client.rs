//! The admin socket from the command line: one request, one answer, blocking. It speaks no more HTTP than that takes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::client::{connect, default_socket};
use super::settings::admin_socket_beside;

/// Where the admin socket is, for every command that asks there
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdminArgs {
    /// The daemon's admin socket [default: admin.sock beside the daemon's socket]
    #[arg(long, value_name = "PATH")]
    admin: Option<PathBuf>,

    /// The daemon's socket [default: $TIDEGATE_SOCKET, else the user's own, else /run/tidegate/tidegate.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "admin")]
    socket: Option<PathBuf>,
}

impl AdminArgs {
    /// A way to ask there.
    pub(super) fn client(&self) -> AdminClient {
        let beside = || admin_socket_beside(&self.socket.clone().unwrap_or_else(default_socket));
        AdminClient { path: self.admin.clone().unwrap_or_else(beside) }
    }
}

/// Asks at one admin socket.
#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    path: PathBuf,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// The code of HTTP.
    pub(super) status: u16,
    /// What stands above the text, by name in small letters.
    pub(super) headers: Vec<(String, String)>,
    /// The text.
    pub(super) body: String,
}

/// Why there is no answer, or none that does what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}: {source}{}", path.display(), mend(source))]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: the answer is not that of a tidegate: is this its admin socket?", path.display())]
    NotUnderstood { path: PathBuf },
    #[error("{0}")]
    Refused(String),
}

impl AdminClient {
    /// Asks at this one.
    pub(super) fn at(path: PathBuf) -> AdminClient {
        AdminClient { path }
    }

    /// Looks at a page, whatever its status.
    pub(super) fn get(&self, path: &str) -> Result<Answered, Failure> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\r\n"), PATIENCE)
    }

    /// Looks at a page that is one JSON value.
    pub(super) fn get_json(&self, path: &str) -> Result<Value, Failure> {
        let answered = self.get(path)?;
        self.understood(&answered)
    }

    /// Has a verb carried out and returns what it says.
    pub(super) fn post(&self, path: &str, asked: &Value) -> Result<Value, Failure> {
        let body = asked.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answered = self.ask(&(head + &body), VERB_PATIENCE)?;
        self.understood(&answered)
    }

    /// Has something begun whose answer comes line by line: the connection, and what has come of the lines already.
    pub(super) fn begin(&self, path: &str, asked: &Value) -> Result<(UnixStream, Vec<u8>), Failure> {
        let body = asked.to_string();
        // Of version 1.0: the lines come as they are, and end where the connection does.
        let request = format!(
            "POST {path} HTTP/1.0\r\nhost: tidegate\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let failed = |source| Failure::Io { path: self.path.clone(), source };
        let mut stream = connect(&self.path, VERB_PATIENCE).map_err(failed)?;
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut answer = Vec::new();
        let head = read_head(&mut stream, &mut answer).map_err(failed)?;
        if answer.starts_with(b"HTTP/1.0 200 ") {
            return Ok((stream, answer.split_off(head)));
        }
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
        let answered = answered(&String::from_utf8_lossy(&answer));
        let not_understood = || Failure::NotUnderstood { path: self.path.clone() };
        self.understood(&answered.ok_or_else(not_understood)?)?;
        Err(not_understood())
    }

    fn understood(&self, answered: &Answered) -> Result<Value, Failure> {
        let value: Value = serde_json::from_str(&answered.body)
            .map_err(|_| Failure::NotUnderstood { path: self.path.clone() })?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(Failure::Refused(error.to_owned())),
            None => Ok(value),
        }
    }

    fn ask(&self, request: &str, patience: Duration) -> Result<Answered, Failure> {
        let answer = exchange(&self.path, request, patience)
            .map_err(|source| Failure::Io { path: self.path.clone(), source })?;
        answered(&answer).ok_or_else(|| Failure::NotUnderstood { path: self.path.clone() })
    }
}

fn exchange(path: &Path, request: &str, patience: Duration) -> io::Result<String> {
    let mut stream = connect(path, patience)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    // Who may not ask is shown out without a word.
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Reads until the head is whole, and says where it ends.
fn read_head(stream: &mut UnixStream, answer: &mut Vec<u8>) -> io::Result<usize> {
    let mut part = [0; 4_096];
    loop {
        if let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            return Ok(head + 4);
        }
        let count = stream.read(&mut part)?;
        // Who may not ask is shown out without a word.
        if count == 0 || answer.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(part.get(..count).unwrap_or_default());
    }
}

/// Splits the head from the text. Who closes at the end of it need not say how long it is.
fn answered(answer: &str) -> Option<Answered> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Some(Answered { status, headers: headers.collect(), body: body.to_owned() })
}

/// What to do about it, where that is known.
fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            " — is the daemon running? Its admin socket is `admin.sock` beside its socket, or where \
             `admin.socket` of its settings says: --admin PATH"
        }
        io::ErrorKind::ConnectionRefused => {
            " — nobody listens there any more: start the daemon (tidegate serve)"
        }
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            " — it is for root and for the user who runs the daemon: try sudo"
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => " — the daemon does not answer in time",
        _ => "",
    }
}

/// To look takes some milliseconds, also on a busy host.
const PATIENCE: Duration = Duration::from_secs(5);

/// A verb may wait for files.
const VERB_PATIENCE: Duration = Duration::from_secs(40);

/// A few names and values.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A status of thousands of rules is smaller.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
