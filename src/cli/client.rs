//! A blocking connection to the daemon, for one request after another.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::doctor::reach;
use crate::protocol::{
    Code, DescriptorList, Fault, FrameSplit, HelloFrame, ReplyScratch, RequestFrame, TooLarge, WireReply,
    decode_reply, encode_request, split_frame,
};
use crate::server::connect_at_once;
use crate::terms::without_number;

/// A connection after a successful HELLO.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    last_id: u64,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ClientFailure {
    #[error("{}", unreached(path, source))]
    Connect { path: PathBuf, source: io::Error },
    #[error("the connection to the daemon failed: {}", in_words(source))]
    Io {
        #[from]
        source: io::Error,
    },
    #[error("this is the admin socket: name the daemon's socket, NAME.sock beside NAME.admin.sock")]
    AdminSocket,
    /// The daemon shuts down and did not read this request.
    #[error("the daemon is leaving, and none has taken its place")]
    Leaving,
    #[error("{code}: {message}")]
    Refused { code: Code, message: String },
    #[error("the daemon's answer is not understood: {0}")]
    Fault(#[from] Fault),
    #[error("{0}")]
    TooLarge(#[from] TooLarge),
}

impl ClientFailure {
    pub(super) fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            ClientFailure::Connect { source, .. } | ClientFailure::Io { source } => Some(source.kind()),
            _ => None,
        }
    }
}

impl Client {
    pub(super) fn connect(path: &Path, patience: Duration) -> Result<Client, ClientFailure> {
        Client::connect_as(path, patience, HelloFrame::new(0))
    }

    /// Connects with this HELLO; its client name is replaced by that of the command line.
    pub(super) fn connect_as(
        path: &Path,
        patience: Duration,
        hello: HelloFrame<'_>,
    ) -> Result<Client, ClientFailure> {
        let failed = |source| ClientFailure::Connect { path: path.into(), source };
        let stream = connect(path, patience).map_err(failed)?;
        let mut client = Client { stream, buffer: Vec::new(), last_id: 0 };
        let hello = RequestFrame::Hello(HelloFrame { client: Some(CLIENT), ..hello });
        client.ask(&hello, &DescriptorList::new(), |_| ())?;
        Ok(client)
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn send(&mut self, requests: &[u8]) -> Result<(), ClientFailure> {
        Ok(self.stream.write_all(requests)?)
    }

    /// Sends a request, waits for the next reply and passes it to `look`, unless it is an ERROR.
    pub(super) fn ask<T>(
        &mut self,
        request: &RequestFrame<'_>,
        descriptors: &DescriptorList<'_>,
        look: impl FnOnce(&WireReply<'_>) -> T,
    ) -> Result<T, ClientFailure> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, request, descriptors)?;
        // A daemon that refuses the connection replies and closes it, so a reply may exist although the write
        // failed. A GOODBYE sent before this request is read first.
        let written = self.stream.write_all(&bytes);
        let looked = self.receive(|payload| match decode_reply(payload, &mut ReplyScratch::default())? {
            WireReply::Goodbye { .. } => Err(ClientFailure::Leaving),
            WireReply::Error { code, message, .. } => {
                Err(ClientFailure::Refused { code, message: message.to_owned() })
            }
            reply => Ok(look(&reply)),
        });
        match (looked, written) {
            (Err(ClientFailure::Io { .. }), Err(source)) => Err(ClientFailure::Io { source }),
            (Err(failure), _) => Err(failure),
            (Ok(looked), _) => looked,
        }
    }

    /// Waits for the next frame and passes its payload to `look`. Bytes behind it stay buffered.
    pub(super) fn receive<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Result<T, ClientFailure> {
        let mut part = [0; READ_BYTES];
        loop {
            // As a length, these letters are more than a frame may have.
            if self.buffer.starts_with(b"HTTP") {
                return Err(ClientFailure::AdminSocket);
            }
            match split_frame(&self.buffer) {
                FrameSplit::Frame { payload, consumed } => {
                    let looked = look(payload);
                    self.buffer.drain(..consumed);
                    return Ok(looked);
                }
                FrameSplit::Broken(fault) => return Err(fault.into()),
                FrameSplit::More { .. } => {}
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.buffer.extend_from_slice(part.get(..count).unwrap_or_default()),
                // The kernel does not restart a read with a timeout.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Retries a request that an exiting daemon did not read: in an upgrade, the next daemon takes over.
pub(super) fn retry_unread<T>(mut ask: impl FnMut() -> Result<T, ClientFailure>) -> Result<T, ClientFailure> {
    for _ in 1..TRIES {
        match ask() {
            Err(ClientFailure::Leaving) => {}
            answered => return answered,
        }
    }
    ask()
}

pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = connect_at_once(path)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Returns the default socket: `TIDEGATE_SOCKET`, else the user's own if it exists, else the host's.
pub(super) fn default_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("TIDEGATE_SOCKET").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let own = runtime.map(|directory| directory.join("tidegate/tidegate.sock"));
    own.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("/run/tidegate/tidegate.sock"))
}

fn unreached(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{shown}: there is no such file — is the daemon running? (tidegate serve; --socket or TIDEGATE_SOCKET say where)"
        ),
        io::ErrorKind::ConnectionRefused => format!("{shown}: {}", explain_refused(path)),
        io::ErrorKind::PermissionDenied => {
            let obstacle = reach::socket(path, &reach::User::of_this_process());
            let help = obstacle.help.map(|help| format!("\nhelp: {help}")).unwrap_or_default();
            format!("{}{help}", obstacle.message)
        }
        _ => format!("{shown}: {}", in_words(error)),
    }
}

pub(super) fn explain_refused(path: &Path) -> &'static str {
    let is_socket = path.metadata().is_ok_and(|found| found.file_type().is_socket());
    match is_socket {
        true => "no daemon listens there: start the daemon (tidegate serve)",
        false => "this is not a socket: name the daemon's socket, --socket PATH",
    }
}

pub(super) fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "the daemon does not answer in time: tidegate doctor says more".to_owned()
        }
        io::ErrorKind::UnexpectedEof => "the daemon closed it".to_owned(),
        _ => without_number(error),
    }
}

const CLIENT: &str = concat!("cli/", env!("CARGO_PKG_VERSION"));

const READ_BYTES: usize = 16_384;

/// Attempts: at the exiting daemon, at the next one, and once more in case that one exits too.
const TRIES: usize = 3;
