//! A blocking client of the admin socket, with as much HTTP as one request and one response need. Each
//! request names the daemon's socket; a daemon that serves another socket refuses it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{connect, default_socket, explain_refused, in_words};
use super::running::RunningDaemon;
use crate::daemon::settings::{SETTINGS_FILE, Settings, default_admin_socket};
use crate::server::SocketFile;
use crate::terms::without_number;

/// Where the admin socket is, for every command that asks there
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AdminArgs {
    /// The daemon's admin socket, whatever socket it serves [default: NAME.admin.sock beside the daemon's socket
    /// NAME.sock, else that of its settings, else admin.sock beside the socket]
    #[arg(long, value_name = "PATH")]
    pub(super) admin: Option<PathBuf>,

    /// The daemon's socket [default: $TIDEGATE_SOCKET, else the user's own, else /run/tidegate/tidegate.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "admin")]
    pub(super) socket: Option<PathBuf>,
}

impl AdminArgs {
    /// Returns these, or `other` if these name nothing.
    pub(super) fn or<'a>(&'a self, other: &'a AdminArgs) -> &'a AdminArgs {
        if self.admin.is_none() && self.socket.is_none() { other } else { self }
    }

    pub(super) fn client(&self) -> AdminClient {
        if let Some(path) = &self.admin {
            return AdminClient { paths: vec![path.clone()], ..AdminClient::default() };
        }
        let socket = self.socket.clone().unwrap_or_else(default_socket);
        let mut client = AdminClient::of(socket.clone());
        let installed = Path::new(SETTINGS_FILE);
        match installed.exists().then(|| Settings::load(Some(installed))) {
            Some(Ok((settings, _))) => client.paths.push(settings.admin_socket()),
            // A settings file with an error takes no command away.
            Some(Err(problems)) => {
                client.settings_error =
                    problems.iter().find(|found| found.is_error()).map(ToString::to_string);
            }
            None => {}
        }
        client.paths.push(socket.with_file_name(PACKAGED_NAME));
        client.paths.dedup();
        if !client.paths.iter().any(|path| path.exists()) {
            client.paths.extend(running_admin_socket(&socket));
        }
        client
    }
}

/// Returns the admin socket of the running daemon that serves a socket, by the settings of its command line.
fn running_admin_socket(socket: &Path) -> Option<PathBuf> {
    let config = RunningDaemon::find(socket)?.config?;
    let (mut settings, _) = Settings::load(Some(&config)).ok()?;
    settings.listen_at(socket, true);
    Some(settings.admin_socket())
}

#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    /// The candidates: the first at which a process listens is used. There is at least one.
    paths: Vec<PathBuf>,
    /// The first error of the installed settings, which may name another path.
    settings_error: Option<String>,
    /// The socket that the daemon must serve; `None` accepts any daemon.
    socket: Option<PathBuf>,
    /// How long to wait for a page.
    patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminResponse {
    pub(super) status: u16,
    /// Names are in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    /// The admin socket that answered.
    from: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AdminFailure {
    #[error("{}: {}", path.display(), unanswered(path, source))]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: the answer is not that of a tidegate: is this its admin socket?", path.display())]
    NotUnderstood { path: PathBuf },
    #[error(
        "{}: there is no socket: {}\nhelp: start the daemon (tidegate serve), or name its socket: --socket PATH",
        path.display(),
        without_number(source)
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

impl Default for AdminClient {
    fn default() -> AdminClient {
        AdminClient { paths: Vec::new(), settings_error: None, socket: None, patience: PATIENCE }
    }
}

impl AdminClient {
    /// Returns a client for the daemon that serves a socket, at the admin socket beside it.
    pub(super) fn of(socket: PathBuf) -> AdminClient {
        let paths = vec![default_admin_socket(&socket)];
        AdminClient { paths, socket: Some(socket), ..AdminClient::default() }
    }

    pub(super) fn of_settings(settings: &Settings) -> AdminClient {
        let socket = &settings.socket.path;
        // Settings with an error count as the defaults, and may have named the socket so.
        let packaged = settings.admin_socket.is_none().then(|| socket.with_file_name(PACKAGED_NAME));
        let paths = std::iter::once(settings.admin_socket()).chain(packaged).collect();
        AdminClient { paths, socket: Some(socket.clone()), ..AdminClient::default() }
    }

    pub(super) fn within(self, patience: Duration) -> AdminClient {
        AdminClient { patience, ..self }
    }

    pub(super) fn get(&self, path: &str) -> Result<AdminResponse, AdminFailure> {
        self.ask("GET", path, "", self.patience)
    }

    pub(super) fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, AdminFailure> {
        self.get(path)?.read()
    }

    pub(super) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &Value,
    ) -> Result<T, AdminFailure> {
        self.see_that_it_answers()?;
        self.ask("POST", path, &parameters.to_string(), VERB_PATIENCE)?.read()
    }

    /// Starts a command with a streamed response. Returns the connection and the first bytes of the body.
    pub(super) fn begin(
        &self,
        path: &str,
        parameters: &Value,
    ) -> Result<(UnixStream, Vec<u8>), AdminFailure> {
        self.see_that_it_answers()?;
        let (stream, admin) = self.send("POST", path, &parameters.to_string(), VERB_PATIENCE)?;
        let failed = |source| AdminFailure::Io { path: admin.to_owned(), source };
        let (mut stream, mut answer) = (BufReader::new(stream), Vec::new());
        while !answer.ends_with(b"\r\n\r\n") {
            let count =
                stream.by_ref().take(HEAD_BYTES_MAX).read_until(b'\n', &mut answer).map_err(failed)?;
            // The admin socket closes connections of other users without a response.
            if count == 0 || answer.len() as u64 > HEAD_BYTES_MAX {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        if answer.starts_with(b"HTTP/1.0 200 ") {
            let came = stream.buffer().to_vec();
            return Ok((stream.into_inner(), came));
        }
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
        self.answered(admin, &answer)?.read::<Value>()?;
        Err(AdminFailure::NotUnderstood { path: admin.to_owned() })
    }

    /// Fails where the daemon hangs: it would carry out the command when it runs again, long after this process has given up.
    fn see_that_it_answers(&self) -> Result<(), AdminFailure> {
        self.get("/healthz").map(drop)
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patience: Duration,
    ) -> Result<AdminResponse, AdminFailure> {
        let (stream, admin) = self.send(method, path, body, patience)?;
        let failed = |source| AdminFailure::Io { path: admin.to_owned(), source };
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
        // The admin socket closes connections of other users without a response.
        if answer.is_empty() {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.answered(admin, &answer)
    }

    /// Connects and sends a request, with the identity of the file at the socket's path. Returns the connection and the path
    /// of the admin socket. HTTP/1.0 responses are not chunked and end with the connection.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: &str,
        patience: Duration,
    ) -> Result<(UnixStream, &Path), AdminFailure> {
        let mut head = format!("{method} {path} HTTP/1.0\r\nhost: tidegate\r\n");
        if let Some(path) = &self.socket {
            let found = std::fs::metadata(path)
                .map_err(|source| AdminFailure::NoSocket { path: path.clone(), source })?;
            let token = SocketFile::token((found.dev(), found.ino()));
            head += &format!("{}: {token}\r\n", SocketFile::HEADER);
        }
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        let (mut stream, admin) = self.connect(patience)?;
        stream
            .write_all(format!("{head}\r\n{body}").as_bytes())
            .map_err(|source| AdminFailure::Io { path: admin.to_owned(), source })?;
        Ok((stream, admin))
    }

    fn connect(&self, patience: Duration) -> Result<(UnixStream, &Path), AdminFailure> {
        let is_absent = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        let mut absent = None;
        for path in &self.paths {
            match connect(path, patience) {
                Ok(stream) => return Ok((stream, path)),
                // If no candidate listens, report the first one.
                Err(source) if is_absent(&source) => {
                    absent.get_or_insert(AdminFailure::Io { path: path.clone(), source });
                }
                Err(source) => return Err(AdminFailure::Io { path: path.clone(), source }),
            }
        }
        let absent = absent.unwrap_or_else(|| AdminFailure::Refused("no admin socket is named".to_owned()));
        let help = "help: correct the settings, which may say where the admin socket is";
        Err(match &self.settings_error {
            Some(settings) => AdminFailure::Refused(format!("{absent}\n{help}: {settings}")),
            None => absent,
        })
    }

    fn answered(&self, admin: &Path, answer: &[u8]) -> Result<AdminResponse, AdminFailure> {
        let not_understood = || AdminFailure::NotUnderstood { path: admin.to_owned() };
        let answered = answered(admin, &String::from_utf8_lossy(answer)).ok_or_else(not_understood)?;
        let Some(socket) = self.socket.clone().filter(|_| answered.status == MISDIRECTED) else {
            return Ok(answered);
        };
        let body: Value = serde_json::from_str(&answered.body).map_err(|_| not_understood())?;
        let serves = body.get("serves").and_then(Value::as_str).ok_or_else(not_understood)?;
        Err(AdminFailure::Misdirected { admin: admin.to_owned(), serves: serves.to_owned(), socket })
    }
}

impl AdminResponse {
    fn read<T: DeserializeOwned>(&self) -> Result<T, AdminFailure> {
        let failed = |_| AdminFailure::NotUnderstood { path: self.from.clone() };
        let value: Value = serde_json::from_str(&self.body).map_err(failed)?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(AdminFailure::Refused(error.to_owned())),
            None => serde_json::from_value(value).map_err(failed),
        }
    }
}

/// Splits a response into status, headers and body. Without a length, the body ends with the connection.
fn answered(from: &Path, answer: &str) -> Option<AdminResponse> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Some(AdminResponse { status, headers: headers.collect(), body: body.to_owned(), from: from.to_owned() })
}

/// Describes the socket that the daemon serves instead of this one.
fn instead_of(socket: &Path, serves: &str) -> String {
    let path = socket.display();
    if Path::new(serves) == socket {
        return format!("a socket that was at {path}, where another one lies now");
    }
    format!("{serves}, not {path}")
}

fn unanswered(path: &Path, error: &io::Error) -> String {
    let reason = without_number(error);
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{reason} — is the daemon running? Its admin socket is `NAME.admin.sock` beside its socket `NAME.sock`, or \
             where `admin.socket` of its settings says: --admin PATH"
        ),
        io::ErrorKind::ConnectionRefused => explain_refused(path).to_owned(),
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            format!("{reason} — only root and the daemon's own user may use it: try sudo")
        }
        _ => in_words(error),
    }
}

/// The admin socket of the packaged settings.
const PACKAGED_NAME: &str = "admin.sock";

/// HTTP 421: the daemon serves another socket.
const MISDIRECTED: u16 = 421;

/// Reading a page takes some milliseconds, also on a busy host.
const PATIENCE: Duration = Duration::from_secs(5);

/// A command may wait for files.
const VERB_PATIENCE: Duration = Duration::from_secs(40);

/// A few names and values.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// More than a status of thousands of rules.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
