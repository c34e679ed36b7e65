//! The listening socket: bound at a path with its final mode, never taken from a running daemon; or passed by a service
//! manager, then neither changed nor removed.
//!
//! A lock file beside the socket decides ownership of the path: the daemon that holds the lock may replace a socket that
//! refuses connections. The new socket is made under a temporary name and renamed into place, so the path is never
//! missing, incomplete, or open to more users than it will be. While the daemon runs, a removed or replaced file is made
//! again, so that new processes are limited too.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Gid, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use tracing::{info, warn};

use super::ServerState;
use super::accept::admit_backlog;
use super::decision_thread::DecisionThread;
use crate::terms::without_number;

/// A socket that listens at a path.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    /// `None` for a passed socket, whose path belongs to the service manager.
    owned: Option<OwnedPath>,
    file: Arc<SocketFile>,
}

#[derive(Debug)]
struct OwnedPath {
    /// Device and inode of the socket.
    identity: (u64, u64),
    mode: u32,
    group: Option<u32>,
    /// Held until the end. The lock file is not removed, as a lock on a removed file excludes no other process.
    lock: File,
}

/// Why binding a path failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BindError {
    #[error("{path}: a socket's path has at most {PATH_BYTES_MAX} bytes and this one has {bytes}")]
    TooLong { path: PathBuf, bytes: usize },
    #[error("{path}: another tidegate is running here{} (it holds {lock})", process(*pid))]
    Locked { path: PathBuf, lock: PathBuf, pid: Option<u32> },
    #[error("{path}: another process is listening here")]
    InUse { path: PathBuf },
    #[error("{path}: something that is not a socket is in the way")]
    NotASocket { path: PathBuf },
    #[error("{path}: {doing}: {}{}", without_number(source), help(source))]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
}

impl Listener {
    /// Binds a path with a mode such as 0o660, and a group if it differs from that of the process.
    ///
    /// # Errors
    /// See [`BindError`]. The path is unchanged then.
    pub fn bind(path: &Path, mode: u32, group: Option<u32>) -> Result<Listener, BindError> {
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            return Err(BindError::TooLong { path: path.into(), bytes });
        }
        let lock = acquire_lock(path)?;
        let (socket, identity) = listen_at(path, mode, group)?;
        let owned = Some(OwnedPath { identity, mode, group, lock });
        Ok(Listener::with(socket, path.into(), owned))
    }

    fn with(socket: UnixListener, path: PathBuf, owned: Option<OwnedPath>) -> Listener {
        let passed = || std::fs::metadata(&path).ok().as_ref().map(file_identity);
        let identity = owned.as_ref().map(|owned| owned.identity).or_else(passed);
        let file = SocketFile { path, identity: Mutex::new(identity), obstacle: Mutex::default() };
        Listener { socket, owned, file: Arc::new(file) }
    }

    /// Returns what operators see of the socket file.
    pub fn file(&self) -> &Arc<SocketFile> {
        &self.file
    }

    /// Whether the socket file is still at its path. That of a passed socket is the service manager's.
    pub fn is_at_path(&self) -> bool {
        let is_own = |owned: &OwnedPath| {
            std::fs::symlink_metadata(self.path()).is_ok_and(|now| file_identity(&now) == owned.identity)
        };
        self.owned.as_ref().is_none_or(is_own)
    }

    /// Returns once the socket file is not at its path any more, for one that is then bound anew.
    pub async fn await_removal(&self) {
        while self.is_at_path() {
            tokio::time::sleep(REMOVAL_CHECK_EVERY).await;
        }
    }

    /// Binds the path again after its file was removed. Returns the new socket, registered with the current runtime.
    ///
    /// # Errors
    /// As of [`Listener::bind`]: another process may have taken the path.
    pub(super) fn bind_again(&mut self) -> Result<tokio::net::UnixListener, BindError> {
        let path = &*self.file.path;
        let failed = |source| BindError::Io { path: path.into(), doing: "cannot listen again", source };
        let Some(owned) = &mut self.owned else { return self.watch().map_err(failed) };
        let held = owned.lock.metadata().map_err(failed)?;
        let lock = std::fs::symlink_metadata(with_suffix(path, LOCK_SUFFIX));
        if !lock.is_ok_and(|there| file_identity(&there) == file_identity(&held)) {
            owned.lock = acquire_lock(path)?;
        }
        let (socket, identity) = listen_at(path, owned.mode, owned.group)?;
        let watched = socket.try_clone().and_then(tokio::net::UnixListener::from_std).map_err(failed)?;
        (self.socket, owned.identity) = (socket, identity);
        *self.file.identity.lock() = Some(identity);
        Ok(watched)
    }

    /// Takes a listening socket passed by a service manager. Its path, mode and group never change.
    ///
    /// # Errors
    /// It is not a listening Unix stream socket with a path.
    pub fn from_passed(passed: OwnedFd) -> Result<Listener, String> {
        let unusable = |error: io::Error| format!("it is not a usable socket: {error}");
        let option = |error: Errno| unusable(error.into());
        if sockopt::socket_domain(&passed).map_err(option)? != AddressFamily::UNIX {
            return Err("it is not a Unix socket: write a path as ListenStream=".to_owned());
        }
        if sockopt::socket_type(&passed).map_err(option)? != SocketType::STREAM {
            return Err(NOT_STREAM.to_owned());
        }
        if !sockopt::socket_acceptconn(&passed).map_err(option)? {
            return Err("it does not listen: write Accept=no, or leave it out".to_owned());
        }
        let socket = UnixListener::from(passed);
        let address = socket.local_addr().map_err(unusable)?;
        let path = address.as_pathname().ok_or(WITHOUT_PATH)?.to_owned();
        socket.set_nonblocking(true).map_err(unusable)?;
        Ok(Listener::with(socket, path, None))
    }

    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Duplicates the socket and registers it with the current runtime.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn watch(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.socket.try_clone()?)
    }

    /// Removes the path if it still is this socket: a client then finds no socket, instead of one without a server. The
    /// path of a passed socket stays: clients wait there for the next daemon.
    pub(super) fn remove_path(&self) {
        if self.owned.is_some() && self.is_at_path() {
            // After an error, the next start finds a stale socket and replaces it.
            let _ = std::fs::remove_file(self.path());
        }
    }

    /// Accepts a waiting connection; `WouldBlock` if there is none.
    pub(super) fn try_accept(&self) -> io::Result<UnixStream> {
        let (socket, _) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_path();
    }
}

/// Listens at a path whose lock this process holds. Returns the socket with its identity.
fn listen_at(path: &Path, mode: u32, group: Option<u32>) -> Result<(UnixListener, (u64, u64)), BindError> {
    let failed = |doing| move |source| BindError::Io { path: path.into(), doing, source };
    ensure_not_listening(path)?;
    let temporary = temporary_path(path);
    remove_stale(&temporary)?;
    let socket = bind_with_mode(&temporary, mode).map_err(failed("cannot listen"))?;
    let identity = publish(&temporary, path, group);
    let identity = identity.inspect_err(|_| drop(std::fs::remove_file(&temporary)));
    let identity = identity.map_err(failed("cannot move the socket to its path"))?;
    socket.set_nonblocking(true).map_err(failed("cannot listen"))?;
    Ok((socket, identity))
}

/// Locks the path, and writes the process to the lock file for those that find it locked.
fn acquire_lock(path: &Path) -> Result<File, BindError> {
    let lock_path = with_suffix(path, LOCK_SUFFIX);
    let failed = |source| BindError::Io { path: lock_path.clone(), doing: "cannot lock", source };
    let mut options = OpenOptions::new();
    // A planted link is not followed.
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(LOCK_MODE)
        .custom_flags(libc::O_NOFOLLOW);
    let mut lock = options.open(&lock_path).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {
            // That of an earlier version has another mode.
            let _ = lock.set_permissions(Permissions::from_mode(LOCK_MODE));
            // Without it, as on a full disk, the message lacks the process.
            let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
            Ok(lock)
        }
        Err(TryLockError::WouldBlock) => {
            let mut written = String::new();
            let _ = lock.take(PID_BYTES_MAX).read_to_string(&mut written);
            let pid = written.trim().parse().ok();
            Err(BindError::Locked { path: path.into(), lock: lock_path, pid })
        }
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Fails if another process listens at the path without holding the lock. A socket that refuses connections is stale.
fn ensure_not_listening(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { path: path.into(), doing: "cannot inspect it", source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(there) if there.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::NotASocket { path: path.into() }),
    }
    match connect_at_once(path) {
        Ok(_) => Err(BindError::InUse { path: path.into() }),
        // A full backlog belongs to a listening process too.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(BindError::InUse { path: path.into() })
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            Ok(())
        }
        Err(error) => Err(failed(error)),
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map(|pid| format!(": process {pid}")).unwrap_or_default()
}

fn help(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound | io::ErrorKind::ReadOnlyFilesystem => {
            "\nhelp: name a path in a directory that this user may write: --socket PATH, or `socket.path` of the settings"
        }
        _ => "",
    }
}

/// The path and identity of the socket file, and why it cannot be made again, for operators.
#[derive(Debug, Default)]
pub struct SocketFile {
    pub path: PathBuf,
    identity: Mutex<Option<(u64, u64)>>,
    obstacle: Mutex<Option<String>>,
}

impl SocketFile {
    /// The request header by which a command names the socket whose daemon it means, as [`SocketFile::token`] has it.
    pub const HEADER: &str = "tidegate-socket";

    /// Device and inode as the header has them.
    pub fn token((device, inode): (u64, u64)) -> String {
        format!("{device}:{inode}")
    }

    /// Returns device and inode of the socket; `None` if the path of a passed socket did not exist.
    pub fn identity(&self) -> Option<(u64, u64)> {
        *self.identity.lock()
    }

    /// Says why new processes cannot connect, if the file is not at its path.
    pub fn obstacle(&self) -> Option<String> {
        let obstacle = self.obstacle.lock();
        let text = |why: &String| {
            format!(
                "its socket file was removed or replaced, so no new process can connect: {why}; then it is made again"
            )
        };
        obstacle.as_ref().map(text)
    }
}

/// Makes the socket file again if it is not at its path. Returns the new socket to accept from.
pub(super) fn restore(
    listener: &mut Listener,
    shared: &Arc<ServerState>,
    threads: &[DecisionThread],
) -> Option<tokio::net::UnixListener> {
    let file = Arc::clone(listener.file());
    if listener.is_at_path() {
        if file.obstacle.lock().take().is_some() {
            info!(path = %listener.path().display(), "the socket file is at its path again");
        }
        return None;
    }
    // No path leads to them any more.
    admit_backlog(listener, shared, threads);
    match listener.bind_again() {
        Ok(socket) => {
            *file.obstacle.lock() = None;
            let path = listener.path().display();
            warn!(%path, "the socket file was removed or replaced: it is made again, and new processes can connect");
            Some(socket)
        }
        Err(error) => {
            let reason = error.to_string().replace('\n', "; ");
            let mut obstacle = file.obstacle.lock();
            if obstacle.as_ref() != Some(&reason) {
                warn!(
                    reason,
                    "the socket file was removed or replaced, and NO NEW PROCESS CAN CONNECT; tried again"
                );
                *obstacle = Some(reason);
            }
            None
        }
    }
}

/// Connects without waiting for a full backlog, where a blocking connect has no timeout. Reads and writes do not wait either.
///
/// # Errors
/// Nothing listens there, the backlog is full, or this user may not connect.
pub fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{SocketAddrUnix, SocketFlags, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Binds under a umask that leaves only the mode, so that other users cannot connect even for a moment. Every other file of
/// the daemon is made with a mode of its own.
fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    use rustix::net::{SocketAddrUnix, SocketFlags, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path)?;
    let only_one = UMASK.lock();
    let mask = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
    let bound = bind(&socket, &address);
    rustix::process::umask(mask);
    drop(only_one);
    bound?;
    listen(&socket, i32::from(BACKLOG))?;
    Ok(UnixListener::from(socket))
}

/// All threads have one umask, and adapters bind on their own threads.
static UMASK: Mutex<()> = Mutex::new(());

/// Sets the group of the socket and renames it to its path. Returns its identity.
fn publish(temporary: &Path, path: &Path, group: Option<u32>) -> io::Result<(u64, u64)> {
    if let Some(group) = group {
        rustix::fs::chownat(CWD, temporary, None, Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let identity = file_identity(&std::fs::symlink_metadata(temporary)?);
    std::fs::rename(temporary, path)?;
    Ok(identity)
}

fn file_identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes the temporary socket of an interrupted start. No process listens on it, as this process holds the lock.
fn remove_stale(temporary: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Io { path: temporary.into(), doing: "cannot remove it", source };
    match std::fs::symlink_metadata(temporary) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(temporary).map_err(failed),
        Ok(_) => Err(BindError::NotASocket { path: temporary.into() }),
    }
}

/// Returns the temporary path of the socket, one of its own: other sockets may be bound at the same time. Only the longest path,
/// which leaves no room for another byte, may share it.
fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().as_bytes().to_vec();
    if name.len() == PATH_BYTES_MAX
        && let Some(last) = name.last_mut()
    {
        *last = if *last == b'~' { b'-' } else { b'~' };
    } else {
        name.push(b'~');
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

/// Marks a lock file under any name: the sticky bit, which has no meaning for a file, and which only its owner can remove.
pub const LOCK_MARK: u32 = 0o1000;

const LOCK_MODE: u32 = 0o600 | LOCK_MARK;

/// More than the digits of a process.
const PID_BYTES_MAX: u64 = 16;

const NOT_STREAM: &str =
    "it is a Unix socket of another kind than a stream: write ListenStream=, not ListenDatagram= or the like";
const WITHOUT_PATH: &str =
    "it has no path that could have a mode, so every user could connect: write a path as ListenStream=";

/// All processes of all applications may reconnect at once after a restart.
pub const BACKLOG: u16 = 4_096;
/// Retries until a listener is open, and logs each new reason why it is not. An obstacle may go away: the previous daemon may
/// still drain.
pub async fn retry_until_open<T>(
    first: Result<T, String>,
    mut open: impl AsyncFnMut() -> Result<T, String>,
    meanwhile: &str,
) -> T {
    let mut tried = first;
    let mut logged = None;
    loop {
        match tried {
            Ok(listener) => return listener,
            Err(reason) => {
                if logged.as_ref() != Some(&reason) {
                    warn!(reason, "{meanwhile}");
                    logged = Some(reason);
                }
            }
        }
        tokio::time::sleep(RETRY_PERIOD).await;
        tried = open().await;
    }
}

const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// New processes run without limits for no longer than this, at the cost of one `lstat` each time.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The same for the sockets of adapters and operators. Each check wakes the idle daemon twice.
const REMOVAL_CHECK_EVERY: Duration = Duration::from_secs(2);
