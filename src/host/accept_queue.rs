//! Length of the accept queue of one TCP port or Unix socket. Connections whose handshake is not complete, and those
//! that the kernel dropped because the queue was full, are not counted.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use super::Listen;
use super::SignalError;
use super::netlink::{
    DiagMessage, Family, UnixSocketId, parse_messages, parse_tcp_queue, parse_unix_listener,
    write_tcp_listeners_request, write_unix_listeners_request, write_unix_queue_request,
};

#[derive(Debug)]
pub(super) struct AcceptQueue {
    listen: Listen,
    /// The Unix socket, once it was found, and the identity of its path at that time.
    found: Option<(UnixSocketId, FileId)>,
}

/// Device and inode of a path.
type FileId = (u64, u64);

impl AcceptQueue {
    pub(super) fn new(listen: Listen) -> AcceptQueue {
        AcceptQueue { listen, found: None }
    }

    /// Returns the number of connections that wait to be accepted.
    pub(super) fn read(&mut self, kernel: &mut SockDiag) -> Result<u32, SignalError> {
        match &self.listen {
            Listen::Port(port) => count_at_port(*port, kernel),
            Listen::Path(path) => count_at_path(path, &mut self.found, kernel),
        }
    }
}

/// Sums over all listeners on a port: with SO_REUSEPORT each has a queue of its own.
fn count_at_port(port: u16, kernel: &mut SockDiag) -> Result<u32, SignalError> {
    let mut waiting: Option<u32> = None;
    for family in [Family::V4, Family::V6] {
        let write =
            |request: &mut Vec<u8>, sequence| write_tcp_listeners_request(request, family, port, sequence);
        kernel.query(write, false, |socket| {
            if let Some(more) = parse_tcp_queue(socket, port) {
                waiting = Some(waiting.unwrap_or_default().saturating_add(more));
            }
        })?;
    }
    waiting.ok_or(SignalError::NoTcpListener { port })
}

/// Finds the socket once among all Unix sockets, then queries it by its number until that or the path's file changes.
fn count_at_path(
    path: &str,
    found: &mut Option<(UnixSocketId, FileId)>,
    kernel: &mut SockDiag,
) -> Result<u32, SignalError> {
    let file = identify_file(path)?;
    if let Some((socket, _)) = found.filter(|(_, known)| *known == file)
        && let Some(waiting) = count_at_socket(socket, kernel)?
    {
        return Ok(waiting);
    }
    *found = None;
    let socket = find_listener(path, file, kernel)?;
    *found = Some((socket, file));
    // If the socket closed in between, the next sample finds its successor.
    count_at_socket(socket, kernel)?.ok_or_else(|| SignalError::NoUnixListener { path: path.into() })
}

fn count_at_socket(socket: UnixSocketId, kernel: &mut SockDiag) -> Result<Option<u32>, SignalError> {
    let mut waiting = None;
    let write = |request: &mut Vec<u8>, sequence| write_unix_queue_request(request, socket, sequence);
    kernel.query(write, true, |body| waiting = parse_unix_listener(body).and_then(|found| found.waiting))?;
    Ok(waiting)
}

fn identify_file(path: &str) -> Result<FileId, SignalError> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino)),
        Err(rustix::io::Errno::NOENT) => Err(SignalError::NoSocketFile { path: path.into() }),
        Err(error) => Err(SignalError::from_file(path.as_ref(), &io::Error::from(error))),
    }
}

/// Finds the listener of a path.
///
/// By the file first: the application may have bound another spelling of the path, and a listener whose path was
/// replaced may still listen. Otherwise by name, as the inode numbers of overlayfs differ from those the kernel reports;
/// of several listeners with this name, the newest.
fn find_listener(path: &str, file: FileId, kernel: &mut SockDiag) -> Result<UnixSocketId, SignalError> {
    let (mut by_file, mut by_name) = (None, None);
    kernel.query(write_unix_listeners_request, false, |body| {
        let Some(listener) = parse_unix_listener(body) else { return };
        if listener.file == Some(to_kernel_file_id(file)) {
            by_file = Some(listener.id);
        }
        if listener.name == path.as_bytes()
            && by_name.is_none_or(|other: UnixSocketId| other.inode < listener.id.inode)
        {
            by_name = Some(listener.id);
        }
    })?;
    by_file.or(by_name).ok_or_else(|| SignalError::NoUnixListener { path: path.into() })
}

/// Converts to the numbering of `unix_diag`: the low 32 bits of the inode, and 12 bits of major over 20 bits of minor.
fn to_kernel_file_id((device, inode): (u64, u64)) -> (u32, u32) {
    let device = (rustix::fs::major(device) << 20) | (rustix::fs::minor(device) & 0x000f_ffff);
    (u32::try_from(inode & u64::from(u32::MAX)).unwrap_or(u32::MAX), device)
}

/// A netlink socket, opened on first use and again after an error.
#[derive(Debug, Default)]
pub(super) struct SockDiag {
    socket: Option<OwnedFd>,
    sequence: u32,
    request: Vec<u8>,
    datagram: Box<[u8]>,
}

impl SockDiag {
    /// Requests all sockets of a kind, or `one`, and calls `each` for each; for none if the one does not exist. `write`
    /// writes the request with the given sequence number.
    fn query(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        one: bool,
        each: impl FnMut(&[u8]),
    ) -> Result<(), SignalError> {
        let failed = |error: io::Error| SignalError::SockDiag { cause: error.to_string().into() };
        let socket = self.socket.take().map_or_else(open, Ok).map_err(failed)?;
        if self.datagram.is_empty() {
            self.datagram = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice();
        }
        self.sequence = self.sequence.wrapping_add(1);
        write(&mut self.request, self.sequence);
        let sent = sendto(&socket, &self.request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0));
        sent.map_err(io::Error::from).and_then(|_| self.receive(&socket, each, one)).map_err(failed)?;
        // Reused only after success: after an error the rest of a reply may still be queued in the socket.
        self.socket = Some(socket);
        Ok(())
    }

    fn receive(&mut self, socket: &OwnedFd, mut each: impl FnMut(&[u8]), one: bool) -> io::Result<()> {
        loop {
            let (_, bytes) = match recv(socket, &mut *self.datagram, RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => continue,
                received => received?,
            };
            let datagram = self
                .datagram
                .get(..bytes)
                .ok_or_else(|| io::Error::other("the netlink reply is too long"))?;
            for message in parse_messages(datagram, self.sequence) {
                match message {
                    DiagMessage::Socket(body) => {
                        each(body);
                        if one {
                            return Ok(());
                        }
                    }
                    DiagMessage::Done | DiagMessage::Error(0) => return Ok(()),
                    DiagMessage::Error(libc::ENOENT | libc::ESTALE) if one => return Ok(()),
                    DiagMessage::Error(error) => return Err(io::Error::from_raw_os_error(error)),
                    DiagMessage::Other => {}
                }
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(RECEIVE_TIMEOUT))?;
    Ok(socket)
}

/// The kernel sizes the datagrams of a dump by the largest receive buffer used so far, up to this limit.
const DATAGRAM_BYTES_MAX: usize = 32 << 10;

/// The kernel replies during the request; this bounds a kernel that does not.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);
