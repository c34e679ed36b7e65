//! The kernel's own account of sockets, asked over netlink (sock_diag(7)). Only of this network namespace, and only
//! by the sampling thread: a question may take as long as walking the table of sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use super::netlink::{Message, messages};

/// A netlink socket that is made when it is first needed, and again after an error.
#[derive(Debug)]
pub(super) struct SockDiag {
    socket: Option<OwnedFd>,
    sequence: u32,
    request: Vec<u8>,
    answer: Box<[u8]>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// As it should.
    Whole,
    /// There is no such socket.
    NoSuchSocket,
}

impl SockDiag {
    pub(super) fn new() -> SockDiag {
        SockDiag { socket: None, sequence: 0, request: Vec::with_capacity(128), answer: Box::default() }
    }

    /// Asks for all sockets of a kind, each handed to `each`. `write` writes the question with the sequence number
    /// that it is given.
    pub(super) fn ask_all(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&[u8]),
    ) -> io::Result<Answered> {
        self.ask(write, each, false)
    }

    /// Asks for one socket.
    pub(super) fn ask_one(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&[u8]),
    ) -> io::Result<Answered> {
        self.ask(write, each, true)
    }

    fn ask(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&[u8]),
        one: bool,
    ) -> io::Result<Answered> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => open()?,
        };
        if self.answer.is_empty() {
            self.answer = vec![0; ANSWER_BYTES].into_boxed_slice();
        }
        self.sequence = self.sequence.wrapping_add(1);
        write(&mut self.request, self.sequence);
        sendto(&socket, &self.request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let answered = self.receive(&socket, each, one)?;
        // Kept only now: after an error the rest of an answer may still lie in it.
        self.socket = Some(socket);
        Ok(answered)
    }

    fn receive(&mut self, socket: &OwnedFd, mut each: impl FnMut(&[u8]), one: bool) -> io::Result<Answered> {
        loop {
            let (_, bytes) = match recv(socket, &mut *self.answer, RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => continue,
                received => received?,
            };
            let datagram =
                self.answer.get(..bytes).ok_or_else(|| io::Error::other("an answer is too long"))?;
            for message in messages(datagram, self.sequence) {
                match message {
                    Message::Socket(body) => {
                        each(body);
                        if one {
                            return Ok(Answered::Whole);
                        }
                    }
                    Message::Done | Message::Refused(0) => return Ok(Answered::Whole),
                    Message::Refused(libc::ENOENT | libc::ESTALE) if one => {
                        return Ok(Answered::NoSuchSocket);
                    }
                    Message::Refused(error) => return Err(io::Error::from_raw_os_error(error)),
                    Message::Other => {}
                }
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// The kernel puts as much into one datagram as was ever asked for, and never more than this.
const ANSWER_BYTES: usize = 32 << 10;

/// It answers while it is asked; this is for a kernel that never does.
const PATIENCE: Duration = Duration::from_secs(1);
