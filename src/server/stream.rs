//! One socket, watched in one direction at a time: for reading, and for writing only while the peer does not read.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// A non-blocking Unix stream.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<UnixStream>,
    /// Watches for reading. Gone while the peer does not read its replies.
    reading: Option<AsyncFd<Arc<UnixStream>>>,
}

impl Stream {
    pub(super) fn new(socket: Arc<UnixStream>) -> io::Result<Stream> {
        let reading = sys::register(Arc::clone(&socket), Interest::READABLE)?;
        Ok(Stream { socket, reading: Some(reading) })
    }

    /// Waits until there may be something to read, the end included. Cancelled, it has read nothing.
    pub(super) async fn readable(&mut self) -> io::Result<()> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(sys::register(Arc::clone(&self.socket), Interest::READABLE)?),
        };
        let _ready = reading.readable().await?;
        Ok(())
    }

    /// Reads once without waiting; 0 at the end. `None`: there is nothing to read.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(reading) = &self.reading else { return Ok(None) };
        let mut short = None;
        let read = reading.try_io(Interest::READABLE, |socket| {
            let count = loop {
                match (&**socket).read(buffer) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
            // Edge-triggered: a short read has emptied the socket, so the next one must wait for the next edge, and the
            // read that would find nothing is saved. This error is how tokio learns of it.
            if count < buffer.len() && count > 0 {
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

    /// Reads what has arrived, to no end: the kernel tells a peer of unread bytes as a broken connection. Nothing more may
    /// arrive, and the peer had room for no more than [`UNREAD_MAX`].
    pub(super) fn discard_unread(&self, buffer: &mut [u8]) {
        let mut discarded = 0;
        while let Ok(count @ 1..) = (&*self.socket).read(buffer)
            && discarded < UNREAD_MAX
        {
            discarded += count;
        }
    }

    /// Whether nobody is at the other end any more, not even to read.
    pub(super) fn is_gone(&self) -> bool {
        let mut ends = [PollFd::new(&*self.socket, PollFlags::empty())];
        let polled = poll(&mut ends, Some(&Timespec::default()));
        polled.is_ok() && ends.iter().any(|end| end.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// Writes what the kernel takes now, behind the `written` bytes that it has taken already, and counts there what the
    /// peer can read, also where it fails. Whether that was all.
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

    /// Writes the rest of it. A peer that takes nothing for `patience` is given up on.
    pub(super) async fn write_rest(
        &mut self,
        bytes: &[u8],
        patience: Duration,
        written: &mut usize,
    ) -> io::Result<()> {
        while !self.write_now(bytes, written)? {
            tokio::time::timeout(patience, self.writable())
                .await
                .map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
        }
        Ok(())
    }

    /// Waits until the peer has read something. Meanwhile nothing watches for more requests.
    async fn writable(&mut self) -> io::Result<()> {
        self.reading = None;
        let writing = sys::register(Arc::clone(&self.socket), Interest::WRITABLE)?;
        let _ready = writing.writable().await?;
        Ok(())
    }
}

/// Twice what Linux lets a Unix socket hold by default, its bookkeeping included.
const UNREAD_MAX: usize = 425_984;
