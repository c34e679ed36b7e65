//! Registration of descriptors with the runtime's epoll set: sockets for one direction, and processes for their exit; and
//! reading from such a socket.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a socket for the given readiness and no other.
///
/// tokio's `UnixStream` always registers both directions: each read of a reply by the peer then wakes the daemon ahead
/// of the next request, which costs a third of a round trip on one CPU.
pub(crate) fn register_socket(
    stream: Arc<UnixStream>,
    interest: Interest,
) -> io::Result<AsyncFd<Arc<UnixStream>>> {
    // SAFETY: `register_with_interest` requires that the descriptor stays open and is not replaced while the `AsyncFd`
    // lives. An `Arc<UnixStream>` owns a share of its descriptor: it is closed when the last `Arc` drops, the `AsyncFd`
    // holds one until it has deregistered, and no safe call replaces a `UnixStream`'s descriptor behind a shared
    // reference.
    unsafe { AsyncFd::register_with_interest(stream, interest) }.map_err(Into::into)
}

/// Reads once from a socket into the spare capacity of a buffer. Returns the number of bytes, 0 at the end. After an error
/// the buffer is unchanged.
pub(crate) fn read_socket(socket: &UnixStream, buffer: &mut BytesMut) -> io::Result<usize> {
    let (read, _) = rustix::io::read(socket, buffer.spare_capacity_mut())?;
    let count = read.len();
    let filled = buffer.len() + count;
    // SAFETY: `read` is the start of the spare capacity, directly after `buffer.len()` bytes: the kernel has initialised its
    // `count` bytes, and they are within the capacity.
    unsafe { buffer.set_len(filled) };
    Ok(count)
}

/// The exit of a process as an event. The process is not signalled.
#[derive(Debug)]
pub(crate) struct ProcessExit(AsyncFd<OwnedFd>);

impl ProcessExit {
    /// Registers a process descriptor with the current runtime.
    pub(crate) fn new(process: OwnedFd) -> io::Result<ProcessExit> {
        // SAFETY: `register_with_interest` requires that the descriptor stays open and is not replaced while the
        // `AsyncFd` lives. It is moved in here, an `OwnedFd` closes its descriptor when it drops and not before, and
        // nothing replaces it: no reference to the `AsyncFd` leaves this file.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
        Ok(ProcessExit(process))
    }

    /// Waits until the process has exited. Cancel-safe.
    pub(crate) async fn wait(&self) {
        // The only error is the end of the runtime, which ends the waiting task too.
        let _ = self.0.readable().await;
    }
}
