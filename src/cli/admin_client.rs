//! The admin socket from the command line: one request, one answer, blocking. It speaks no more HTTP than that takes.
//! Each request names the socket whose daemon is meant, and the daemon of another socket refuses it.

use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::client::{connect, default_socket};
use crate::admin::ServedSocket;
use crate::daemon::settings::{SETTINGS_FILE, Settings, admin_socket_beside};

/// Where the admin socket is, for every command that asks there
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdminArgs {
    /// The daemon's admin socket, whatever socket it serves [default: NAME.admin.sock beside the daemon's socket
    /// NAME.sock, else that of the installed settings]
    #[arg(long, value_name = "PATH")]
    admin: Option<PathBuf>,

    /// The daemon's socket [default: $TIDEGATE_SOCKET, else the user's own, else /run/tidegate/tidegate.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "admin")]
    socket: Option<PathBuf>,
}

impl AdminArgs {
    /// A way to ask there.
    pub(super) fn client(&self) -> AdminClient {
        if let Some(path) = &self.admin {
            return AdminClient { path: path.clone(), else_at: None, socket: None };
        }
        let installed = Path::new(SETTINGS_FILE);
        let settings = installed.exists().then(|| Settings::load(Some(installed)).ok()).flatten();
        let else_at = settings.map(|(settings, _)| settings.admin_socket());
        AdminClient::of(self.socket.clone().unwrap_or_else(default_socket), else_at)
    }
}

/// Asks at one admin socket.
#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    path: PathBuf,
    /// Asked where nothing listens at the path.
    else_at: Option<PathBuf>,
    /// The socket whose daemon is meant; none: any.
    socket: Option<PathBuf>,
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
    #[error(
        "{}: there is no socket: {source}\nhelp: start the daemon (tidegate serve), or name its socket: --socket PATH",
        path.display()
    )]
    NoSocket { path: PathBuf, source: io::Error },
    #[error(
        "the daemon behind {} serves {}\nhelp: name the admin socket of the daemon that you mean: --admin PATH",
        admin.display(),
        instead_of(socket, serves)
    )]
    Misdirected { admin: PathBuf, serves: String, socket: PathBuf },
    #[error("{0}")]
    Refused(String),
}

impl AdminClient {
    /// Asks the daemon that serves a socket: at the admin socket beside it, else at another one.
    pub(super) fn of(socket: PathBuf, else_at: Option<PathBuf>) -> AdminClient {
        AdminClient { path: admin_socket_beside(&socket), else_at, socket: Some(socket) }
    }

    /// Asks the daemon of these settings.
    pub(super) fn of_settings(settings: &Settings) -> AdminClient {
        let socket = Some(settings.socket.path.clone());
        AdminClient { path: settings.admin_socket(), else_at: None, socket }
    }

    /// Looks at a page, whatever its status.
    pub(super) fn get(&self, path: &str) -> Result<Answered, Failure> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nconnection: close\r\n"), "", PATIENCE)
    }

    /// Looks at a page that is one JSON value.
    pub(super) fn get_json(&self, path: &str) -> Result<Value, Failure> {
        let answered = self.get(path)?;
        self.understood(&answered)
    }

    /// Has a verb carried out and returns what it says.
    pub(super) fn post(&self, path: &str, asked: &Value) -> Result<Value, Failure> {
        let body = asked.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nconnection: close\r\n");
        let answered = self.ask(&head, &body, VERB_PATIENCE)?;
        self.understood(&answered)
    }

    /// Has something begun whose answer comes line by line: the connection, and what has come of the lines already.
    pub(super) fn begin(&self, path: &str, asked: &Value) -> Result<(UnixStream, Vec<u8>), Failure> {
        let body = asked.to_string();
        // Of version 1.0: the lines come as they are, and end where the connection does.
        let request = self.request(&format!("POST {path} HTTP/1.0\r\n"), &body)?;
        let (mut stream, admin) = self.connect(VERB_PATIENCE)?;
        let failed = |source| Failure::Io { path: admin.to_owned(), source };
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut answer = Vec::new();
        let head = read_head(&mut stream, &mut answer).map_err(failed)?;
        if answer.starts_with(b"HTTP/1.0 200 ") {
            return Ok((stream, answer.split_off(head)));
        }
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
        self.understood(&self.answered(admin, &answer)?)?;
        Err(Failure::NotUnderstood { path: admin.to_owned() })
    }

    fn understood(&self, answered: &Answered) -> Result<Value, Failure> {
        let value: Value = serde_json::from_str(&answered.body)
            .map_err(|_| Failure::NotUnderstood { path: self.path.clone() })?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(Failure::Refused(error.to_owned())),
            None => Ok(value),
        }
    }

    fn ask(&self, head: &str, body: &str, patience: Duration) -> Result<Answered, Failure> {
        let request = self.request(head, body)?;
        let (stream, admin) = self.connect(patience)?;
        let answer =
            exchange(stream, &request).map_err(|source| Failure::Io { path: admin.to_owned(), source })?;
        self.answered(admin, &answer)
    }

    /// A request with the headers that all have. It names what lies at the path of the socket at this moment.
    fn request(&self, head: &str, body: &str) -> Result<String, Failure> {
        let mut head = format!("{head}host: tidegate\r\n");
        if let Some(path) = &self.socket {
            let found =
                std::fs::metadata(path).map_err(|source| Failure::NoSocket { path: path.clone(), source })?;
            let token = ServedSocket::token((found.dev(), found.ino()));
            head += &format!("{}: {token}\r\n", ServedSocket::HEADER);
        }
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        Ok(format!("{head}\r\n{body}"))
    }

    /// A connection, and the path that it was made to.
    fn connect(&self, patience: Duration) -> Result<(UnixStream, &Path), Failure> {
        let is_absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        match (connect(&self.path, patience), &self.else_at) {
            (Ok(stream), _) => Ok((stream, &self.path)),
            (Err(error), Some(path)) if is_absent(&error) => {
                let stream = connect(path, patience);
                // Where nothing listens at either, the first is the one to expect.
                let failure = |_| Failure::Io { path: self.path.clone(), source: error };
                stream.map(|stream| (stream, &**path)).map_err(failure)
            }
            (Err(source), _) => Err(Failure::Io { path: self.path.clone(), source }),
        }
    }

    fn answered(&self, admin: &Path, answer: &[u8]) -> Result<Answered, Failure> {
        let not_understood = || Failure::NotUnderstood { path: admin.to_owned() };
        let answered = answered(&String::from_utf8_lossy(answer)).ok_or_else(not_understood)?;
        let Some(socket) = self.socket.clone().filter(|_| answered.status == MISDIRECTED) else {
            return Ok(answered);
        };
        let body: Value = serde_json::from_str(&answered.body).map_err(|_| not_understood())?;
        let serves = body.get("serves").and_then(Value::as_str).ok_or_else(not_understood)?;
        Err(Failure::Misdirected { admin: admin.to_owned(), serves: serves.to_owned(), socket })
    }
}

fn exchange(mut stream: UnixStream, request: &str) -> io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    // Who may not ask is shown out without a word.
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
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

/// What a daemon serves that does not serve this socket.
fn instead_of(socket: &Path, serves: &str) -> String {
    let path = socket.display();
    if Path::new(serves) == socket {
        return format!("a socket that was at {path}, where another one lies now");
    }
    format!("{serves}, not {path}")
}

/// What to do about it, where that is known.
fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            " — is the daemon running? Its admin socket is `NAME.admin.sock` beside its socket `NAME.sock`, or \
             where `admin.socket` of its settings says: --admin PATH"
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

/// The daemon serves another socket.
const MISDIRECTED: u16 = 421;

/// To look takes some milliseconds, also on a busy host.
const PATIENCE: Duration = Duration::from_secs(5);

/// A verb may wait for files.
const VERB_PATIENCE: Duration = Duration::from_secs(40);

/// A few names and values.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A status of thousands of rules is smaller.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
