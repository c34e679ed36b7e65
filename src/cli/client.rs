//! A connection to the daemon for the command line: blocking, one request after another.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::{
    Code, Descriptors, Fault, Hello, Reply, ReplyScratch, Request, Split, TooLarge, decode_reply,
    encode_request, split,
};

/// A connection on which HELLO has been said.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    last_id: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{}: {source}{}", path.display(), mend(source))]
    Connect { path: PathBuf, source: io::Error },
    #[error("the connection to the daemon failed: {source}{}", mend(source))]
    Io {
        #[from]
        source: io::Error,
    },
    /// It has answered all that it heard, and this was not heard.
    #[error("the daemon is leaving, and none has taken its place")]
    Leaving,
    #[error("{code}: {message}")]
    Refused { code: Code, message: String },
    #[error("the daemon's answer is not understood: {0}")]
    Fault(#[from] Fault),
    #[error("{0}")]
    TooLarge(#[from] TooLarge),
}

impl Client {
    /// Connects, and waits for no step longer than `patience`.
    pub(super) fn connect(path: &Path, patience: Duration) -> Result<Client, Failure> {
        Client::connect_as(path, patience, Hello::new(0))
    }

    /// Connects as somebody: what HELLO is to say, but for who writes it.
    pub(super) fn connect_as(path: &Path, patience: Duration, hello: Hello<'_>) -> Result<Client, Failure> {
        let failed = |source| Failure::Connect { path: path.into(), source };
        let stream = connect(path, patience).map_err(failed)?;
        let mut client = Client { stream, buffer: Vec::new(), last_id: 0 };
        let hello = Request::Hello(Hello { client: Some(CLIENT), ..hello });
        let refused = client.ask(&hello, &Descriptors::new(), |reply| match reply {
            Reply::Error { code, message, .. } => Some((*code, (*message).to_owned())),
            _ => None,
        })?;
        match refused {
            Some((code, message)) => Err(Failure::Refused { code, message }),
            None => Ok(client),
        }
    }

    /// An id that no request before had.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Sends requests that are written already.
    pub(super) fn send(&mut self, requests: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.write_all(requests)?)
    }

    /// Sends a request, waits for the next reply and looks at it.
    pub(super) fn ask<T>(
        &mut self,
        request: &Request<'_>,
        descriptors: &Descriptors<'_>,
        look: impl FnOnce(&Reply<'_>) -> T,
    ) -> Result<T, Failure> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, request, descriptors)?;
        // A daemon that refuses the connection says so and closes it: its word is there although ours is not taken.
        // One that leaves says so behind its last answer, maybe before we ask: that is read first.
        let written = self.stream.write_all(&bytes);
        let looked = self.receive(|payload| match decode_reply(payload, &mut ReplyScratch::default())? {
            Reply::Goodbye { .. } => Err(Failure::Leaving),
            reply => Ok(look(&reply)),
        });
        match (looked, written) {
            (Err(Failure::Io { .. }), Err(source)) => Err(Failure::Io { source }),
            (Err(failure), _) => Err(failure),
            (Ok(looked), _) => looked,
        }
    }

    /// Waits for the next frame and looks at its payload. What was read behind it stays for the next call.
    pub(super) fn receive<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> Result<T, Failure> {
        let mut part = [0; READ_BYTES];
        loop {
            match split(&self.buffer) {
                Split::Frame { payload, consumed } => {
                    let looked = look(payload);
                    self.buffer.drain(..consumed);
                    return Ok(looked);
                }
                Split::More { .. } => match self.stream.read(&mut part) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    Ok(count) => self.buffer.extend_from_slice(part.get(..count).unwrap_or_default()),
                    // A read with a time limit is not begun again by the kernel.
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                },
                Split::Broken(fault) => return Err(fault.into()),
            }
        }
    }
}

/// Asks, and asks again where the daemon leaves before it has heard: in an upgrade the next one takes its place at once.
pub(super) fn heard<T>(mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for _ in 1..TRIES {
        match ask() {
            Err(Failure::Leaving) => {}
            answered => return answered,
        }
    }
    ask()
}

/// Connects without waiting for a full backlog, as a blocking connect would for ever.
pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Where the daemon is when the arguments do not say: `TIDEGATE_SOCKET`, else the user's own, else the host's.
pub(super) fn default_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("TIDEGATE_SOCKET").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let own = runtime.map(|directory| directory.join("tidegate/tidegate.sock"));
    own.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("/run/tidegate/tidegate.sock"))
}

/// What to do about it, where that is known.
fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            " — is the daemon running? (tidegate serve; --socket or TIDEGATE_SOCKET say where)"
        }
        io::ErrorKind::ConnectionRefused => {
            " — nobody listens there any more: start the daemon (tidegate serve)"
        }
        io::ErrorKind::PermissionDenied => " — this user is not in the group of the socket",
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => " — the daemon does not answer in time",
        _ => "",
    }
}

const CLIENT: &str = concat!("cli/", env!("CARGO_PKG_VERSION"));

const READ_BYTES: usize = 16_384;

/// One for the daemon that leaves, one for the next, and one for a next that was not to stay.
const TRIES: usize = 3;
