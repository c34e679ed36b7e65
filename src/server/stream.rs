//! One socket, registered for one direction at a time: for reading, or for writing while the peer does not read.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// A non-blocking Unix stream.
#[derive(Debug)]
pub(super) struct ClientStream {
    socket: Arc<UnixStream>,
    /// The registration for reading; `None` while the peer does not read its replies.
    reading: Option<AsyncFd<Arc<UnixStream>>>,
}

impl ClientStream {
    pub(super) fn new(socket: Arc<UnixStream>) -> io::Result<ClientStream> {
        let reading = sys::register_socket(Arc::clone(&socket), Interest::READABLE)?;
        Ok(ClientStream { socket, reading: Some(reading) })
    }

    /// Waits until there may be something to read, or the end. Cancel-safe.
    pub(super) async fn readable(&mut self) -> io::Result<()> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(sys::register_socket(Arc::clone(&self.socket), Interest::READABLE)?),
        };
        let _ready = reading.readable().await?;
        Ok(())
    }

    /// Reads once without waiting into the spare capacity of a buffer. Returns 0 at the end, `None` if there is nothing to
    /// read.
    pub(super) fn try_read(&self, buffer: &mut BytesMut) -> io::Result<Option<usize>> {
        let Some(reading) = &self.reading else { return Ok(None) };
        let mut short = None;
        let read = reading.try_io(Interest::READABLE, |socket| {
            let count = loop {
                match sys::read_socket(socket, buffer) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
            // A short read has emptied the socket. As epoll is edge-triggered here, this error makes tokio wait for the
            // next edge, which saves a read that would find nothing.
            if buffer.len() < buffer.capacity() && count > 0 {
                short = Some(count);
                return Err(ErrorKind::WouldBlock.into());
            }
            Ok(count)
        });
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(short),
            read => read.map(Some),
        }
    }

    /// Reads and discards all received bytes: the kernel reports unread bytes to the peer as a reset. Reading must have
    /// been shut down. The peer had room for no more than [`UNREAD_MAX`].
    pub(super) fn discard_unread(&self) {
        let (mut discarded, mut buffer) = (0, [0; 4_096]);
        while let Ok(count @ 1..) = (&*self.socket).read(&mut buffer)
            && discarded < UNREAD_MAX
        {
            discarded += count;
        }
    }

    /// Whether the peer has closed both directions.
    pub(super) fn is_closed(&self) -> bool {
        let mut ends = [PollFd::new(&*self.socket, PollFlags::empty())];
        let polled = poll(&mut ends, Some(&Timespec::default()));
        polled.is_ok() && ends.iter().any(|end| end.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// Writes the bytes after `written` without waiting, and advances `written`, also before an error. Returns whether all
    /// bytes are written.
    pub(super) fn write_now(&self, bytes: &[u8], written: &mut usize) -> io::Result<bool> {
        while let Some(rest) = bytes.get(*written..).filter(|rest| !rest.is_empty()) {
            match (&*self.socket).write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes the bytes after `written`. Fails with `TimedOut` if the peer reads nothing for `timeout`.
    pub(super) async fn write_rest(
        &mut self,
        bytes: &[u8],
        timeout: Duration,
        written: &mut usize,
    ) -> io::Result<()> {
        while !self.write_now(bytes, written)? {
            tokio::time::timeout(timeout, self.writable())
                .await
                .map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
        }
        Ok(())
    }

    /// Waits until the peer has read something. Meanwhile requests are not watched.
    async fn writable(&mut self) -> io::Result<()> {
        self.reading = None;
        let writing = sys::register_socket(Arc::clone(&self.socket), Interest::WRITABLE)?;
        let _ready = writing.writable().await?;
        Ok(())
    }
}

/// Twice the default buffer of a Unix socket on Linux, including its bookkeeping.
const UNREAD_MAX: usize = 425_984;
