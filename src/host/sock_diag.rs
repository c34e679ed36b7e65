//! Queries the kernel's socket table over netlink (sock_diag(7)), in this network namespace only. Used on the sampling
//! thread alone: a dump may take as long as a walk over all sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use super::netlink::{DiagMessage, parse_messages};

/// A netlink socket, opened on first use and again after an error.
#[derive(Debug)]
pub(super) struct SockDiag {
    socket: Option<OwnedFd>,
    sequence: u32,
    request: Vec<u8>,
    datagram: Box<[u8]>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// All messages of the reply were received.
    Complete,
    /// The socket does not exist.
    NotFound,
}

impl SockDiag {
    pub(super) fn new() -> SockDiag {
        SockDiag { socket: None, sequence: 0, request: Vec::with_capacity(128), datagram: Box::default() }
    }

    /// Requests all sockets of a kind and calls `each` for each. `write` writes the request with the given sequence
    /// number.
    pub(super) fn dump(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&[u8]),
    ) -> io::Result<Lookup> {
        self.request(write, each, false)
    }

    /// Requests one socket.
    pub(super) fn query(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&[u8]),
    ) -> io::Result<Lookup> {
        self.request(write, each, true)
    }

    fn request(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&[u8]),
        one: bool,
    ) -> io::Result<Lookup> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => open()?,
        };
        if self.datagram.is_empty() {
            self.datagram = vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice();
        }
        self.sequence = self.sequence.wrapping_add(1);
        write(&mut self.request, self.sequence);
        sendto(&socket, &self.request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let lookup = self.receive(&socket, each, one)?;
        // Reused only after success: after an error the rest of a reply may still be queued in the socket.
        self.socket = Some(socket);
        Ok(lookup)
    }

    fn receive(&mut self, socket: &OwnedFd, mut each: impl FnMut(&[u8]), one: bool) -> io::Result<Lookup> {
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
                            return Ok(Lookup::Complete);
                        }
                    }
                    DiagMessage::Done | DiagMessage::Error(0) => return Ok(Lookup::Complete),
                    DiagMessage::Error(libc::ENOENT | libc::ESTALE) if one => {
                        return Ok(Lookup::NotFound);
                    }
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
