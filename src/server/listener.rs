//! The socket at its path: born with its final mode, never taken from a daemon that lives; or one that was passed by a
//! service manager, which is used as it is and neither changed nor removed.
//!
//! A lock file beside the socket decides who may have the path: whoever holds it and finds that nobody answers there
//! may replace what is left. The new socket is made under another name and renamed into place, so the path is at no
//! moment missing, half made, or open to more users than it will be.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

/// A socket that listens at a path.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// `None`: the path is somebody else's, who passed the socket.
    ours: Option<Ours>,
}

/// A path that is ours.
#[derive(Debug)]
struct Ours {
    /// What we put there: device and inode.
    identity: (u64, u64),
    /// Held until the end; the file stays, for a lock on a file that is removed locks nobody out.
    _lock: File,
}

/// Why a path cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BindError {
    #[error("{path}: a socket's path has at most {PATH_BYTES_MAX} bytes and this one has {bytes}")]
    TooLong { path: PathBuf, bytes: usize },
    #[error("{path}: another tidegate is running here (it holds {lock})")]
    Locked { path: PathBuf, lock: PathBuf },
    #[error("{path}: another process is listening here")]
    InUse { path: PathBuf },
    #[error("{path}: something that is not a socket is in the way")]
    NotASocket { path: PathBuf },
    #[error("{path}: {doing}: {source}")]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
}

/// Why a socket that was passed cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NotTaken {
    #[error("it is not a Unix socket: write a path as ListenStream=")]
    NotUnix,
    #[error(
        "it is a Unix socket of another kind than a stream: write ListenStream=, not ListenDatagram= or the like"
    )]
    NotStream,
    #[error("nobody can connect to it, for it does not listen: write Accept=no, or leave it out")]
    NotListening,
    #[error(
        "it has no path that could have a mode, so every user could connect: write a path as ListenStream="
    )]
    WithoutPath,
    #[error("it is no socket that can be used: {0}")]
    Io(io::Error),
}

impl Listener {
    /// Listens at a path: mode such as 0o660, group if it is not to be that of the process.
    ///
    /// # Errors
    /// See [`BindError`]. Whatever was at the path before is then still there.
    pub fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<Listener, BindError> {
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            return Err(BindError::TooLong { path: path.into(), bytes });
        }
        let failed = |doing| move |source| BindError::Io { path: path.into(), doing, source };
        let lock = take_lock(path)?;
        make_sure_nobody_listens(path)?;
        let birth = birth_path(path);
        clear_left_over(&birth)?;
        let socket = bind_with_mode(&birth, mode).map_err(failed("cannot listen"))?;
        let identity = place(&birth, path, group).inspect_err(|_| drop(std::fs::remove_file(&birth)));
        let identity = identity.map_err(failed("cannot put the socket in its place"))?;
        socket.set_nonblocking(true).map_err(failed("cannot listen"))?;
        Ok(Listener { socket, path: path.into(), ours: Some(Ours { identity, _lock: lock }) })
    }

    /// Takes a socket that listens already, as a service manager passes it. Its path, mode and group stay as they are,
    /// also when this ends.
    ///
    /// # Errors
    /// It is not a listening Unix stream socket with a path.
    pub fn take(passed: OwnedFd) -> Result<Listener, NotTaken> {
        let kind = |error: Errno| NotTaken::Io(error.into());
        if sockopt::socket_domain(&passed).map_err(kind)? != AddressFamily::UNIX {
            return Err(NotTaken::NotUnix);
        }
        if sockopt::socket_type(&passed).map_err(kind)? != SocketType::STREAM {
            return Err(NotTaken::NotStream);
        }
        if !sockopt::socket_acceptconn(&passed).map_err(kind)? {
            return Err(NotTaken::NotListening);
        }
        let socket = UnixListener::from(passed);
        let address = socket.local_addr().map_err(NotTaken::Io)?;
        let path = address.as_pathname().ok_or(NotTaken::WithoutPath)?.to_owned();
        socket.set_nonblocking(true).map_err(NotTaken::Io)?;
        Ok(Listener { socket, path, ours: None })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode of the socket at the path; `None`: the path of a socket that was passed leads nowhere.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, u64)> {
        let passed = || std::fs::metadata(&self.path).ok().as_ref().map(identity);
        self.ours.as_ref().map(|ours| ours.identity).or_else(passed)
    }

    /// The same socket once more, for who accepts by himself.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn socket(&self) -> io::Result<UnixListener> {
        self.socket.try_clone()
    }

    /// The same socket, watched by the current runtime.
    pub(super) fn watch(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.socket.try_clone()?)
    }

    /// Removes the path if it is still the one that was made: who comes now finds no socket, instead of one that
    /// nobody serves. The path of a socket that was passed stays: who comes waits there for the next daemon.
    pub(super) fn leave(&self) {
        let Some(ours) = &self.ours else { return };
        let is_ours = std::fs::symlink_metadata(&self.path).is_ok_and(|now| identity(&now) == ours.identity);
        if is_ours {
            // What cannot be removed is found stale by the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Somebody who has come already; `WouldBlock` when there is nobody.
    pub(super) fn accept_waiting(&self) -> io::Result<UnixStream> {
        let (socket, _) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.leave();
    }
}

fn take_lock(path: &Path) -> Result<File, BindError> {
    let lock_path = with_suffix(path, LOCK_SUFFIX);
    let failed = |source| BindError::Io { path: lock_path.clone(), doing: "cannot lock", source };
    let mut options = OpenOptions::new();
    // A link that somebody planted is not followed.
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let lock = options.open(&lock_path).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(BindError::Locked { path: path.into(), lock: lock_path }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// A socket that refuses connections is left over; one that accepts belongs to somebody without our lock.
fn make_sure_nobody_listens(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { path: path.into(), doing: "cannot look at it", source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(there) if there.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::NotASocket { path: path.into() }),
    }
    match probe(path) {
        Ok(()) => Err(BindError::InUse { path: path.into() }),
        // A full backlog, too, is somebody's.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(BindError::InUse { path: path.into() })
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            Ok(())
        }
        Err(error) => Err(failed(error)),
    }
}

/// Connects without waiting.
fn probe(path: &Path) -> io::Result<()> {
    use rustix::net::{SocketAddrUnix, SocketFlags, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    drop(UnixStream::from(socket));
    Ok(())
}

/// Binds under a mask that leaves just the mode: there is no moment at which others could connect.
fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    use rustix::net::{SocketAddrUnix, SocketFlags, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    let mask = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
    let bound = bind(&socket, &address);
    rustix::process::umask(mask);
    bound?;
    listen(&socket, i32::from(BACKLOG))?;
    Ok(UnixListener::from(socket))
}

/// Gives the socket its group and its name.
fn place(birth: &Path, path: &Path, group: Option<u32>) -> io::Result<(u64, u64)> {
    if let Some(group) = group {
        rustix::fs::chownat(CWD, birth, None, Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let identity = identity(&std::fs::symlink_metadata(birth)?);
    std::fs::rename(birth, path)?;
    Ok(identity)
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes what a start that was cut short has left where sockets are made. Nobody listens there: the lock is ours.
fn clear_left_over(birth: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { path: birth.into(), doing: "cannot clear the way", source };
    match std::fs::symlink_metadata(birth) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(birth).map_err(failed),
        Ok(_) => Err(BindError::NotASocket { path: birth.into() }),
    }
}

/// The name under which the socket is made: as long as its own, so that it fits wherever that does.
fn birth_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().as_bytes().to_vec();
    if let Some(last) = name.last_mut() {
        *last = if *last == b'~' { b'-' } else { b'~' };
    }
    OsString::from_vec(name).into()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// `sun_path` holds 108 bytes, the last of them zero.
const PATH_BYTES_MAX: usize = 107;

const LOCK_SUFFIX: &str = ".lock";

/// Every process of every application may come back at once after a restart.
pub(super) const BACKLOG: u16 = 4_096;
