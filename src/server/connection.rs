//! One connection: reads frames, answers a batch of them, writes the replies at once.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};

use super::ServerState;
use super::answer::{FrameHandler, NextStep};
use super::connections::{Activity, ConnectionPermit};
use super::fair_queue::QueueMembership;
use super::membership::ConnectionInfo;
use super::memory_charge::MemoryCharge;
use super::stream::ClientStream;
use crate::clock::{Clock, Timestamp};
use crate::engine::{AccountUse, Decider};
use crate::protocol::{FRAME_BYTES_MAX, HEADER_BYTES, WireReply, encode_reply};

/// Serves a connection until its peer closes it, violates the protocol, or the daemon drains.
pub(super) async fn serve(
    socket: Arc<UnixStream>,
    permit: ConnectionPermit,
    seat: QueueMembership,
    shared: Arc<ServerState>,
    decider: Arc<Mutex<Decider>>,
) {
    // Setting up a connection takes as long as a batch.
    seat.admit().await;
    let activity = &*permit.activity;
    let info = ConnectionInfo { socket: Arc::clone(&socket), user: permit.user, number: permit.number };
    let connection = ClientStream::new(socket).map(|stream| ClientConnection {
        stream,
        seat,
        activity,
        last_batch_at: Timestamp::ORIGIN,
        handler: FrameHandler::new(Arc::clone(&shared), info),
        unanswered: BytesMut::new(),
        buffer_bytes: BUFFER_BYTES,
        may_have_more: false,
        replies: Vec::new(),
        charge: MemoryCharge::new(&shared.engine, permit.user, AccountUse::Buffers),
        hello_deadline: Some(Box::pin(sleep(HELLO_TIMEOUT))),
        frame_deadline: None,
        write_closed: false,
        clock: Arc::clone(&shared.clock),
    });
    if let Ok(mut connection) = connection {
        // An I/O error concerns this connection only, and its peer sees it too.
        let _ = connection.run(&shared, &decider).await;
    }
}

struct ClientConnection<'p> {
    stream: ClientStream,
    seat: QueueMembership,
    activity: &'p Activity,
    last_batch_at: Timestamp,
    handler: FrameHandler,
    /// The bytes that are read and not answered.
    unanswered: BytesMut,
    /// The size of the buffer for these: the idle size, or that of the largest frame.
    buffer_bytes: usize,
    /// The last read filled the buffer.
    may_have_more: bool,
    replies: Vec<u8>,
    /// The charge for the two buffers beyond their idle size.
    charge: MemoryCharge,
    /// The deadline of HELLO. A healthy connection has neither deadline and needs no timer.
    hello_deadline: Option<Pin<Box<Sleep>>>,
    frame_deadline: Option<Pin<Box<Sleep>>>,
    /// The peer reads no more. Frames that it sent before are still handled, as one may be a RELEASE.
    write_closed: bool,
    clock: Arc<Clock>,
}

impl ClientConnection<'_> {
    async fn run(&mut self, shared: &ServerState, decider: &Mutex<Decider>) -> io::Result<()> {
        let mut next = NextStep::Read { frame_bytes: HEADER_BYTES };
        loop {
            match next {
                NextStep::Close => return Ok(()),
                NextStep::Continue | NextStep::Pause => {
                    tokio::task::yield_now().await;
                    self.seat.admit().await;
                }
                NextStep::Read { frame_bytes } => {
                    if self.read(frame_bytes).await? == Some(0) {
                        self.await_pending(shared, decider).await?;
                        return self.write_goodbye(shared, decider).await;
                    }
                }
            }
            next = self.answer(decider);
            if next != NextStep::Pause && !self.replies.is_empty() {
                self.write_replies().await?;
            }
        }
    }

    /// Writes the replies and takes back the leases of those that were not written.
    async fn write_replies(&mut self) -> io::Result<()> {
        let mut count = 0;
        let written = if self.write_closed { Ok(()) } else { self.send(&mut count).await };
        self.handler.revoke_unwritten(count);
        match written {
            // Frames that the peer sent before may still be read.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                self.write_closed = true;
                // Drop the pending requests and return their tokens.
                self.handler.pending.clear();
            }
            written => written?,
        }
        self.replies.clear();
        self.replies.shrink_to(BUFFER_BYTES);
        Ok(())
    }

    /// Answers pending requests after the peer has closed its writing side, as it may still read.
    async fn await_pending(&mut self, shared: &ServerState, decider: &Mutex<Decider>) -> io::Result<()> {
        let is_awaited = |connection: &ClientConnection<'_>| {
            !connection.handler.pending.is_empty()
                && !connection.write_closed
                && !connection.stream.is_closed()
        };
        while is_awaited(self) && !shared.connections.is_draining() {
            self.handler.pending.ready(&self.clock).await;
            let goes_on = {
                let mut decider = decider.lock();
                self.handler.answer_pending(false, &mut decider, &mut self.replies)
            };
            self.write_replies().await?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Writes the replies. Waits for a slow peer if its user's account has room for them.
    async fn send(&mut self, written: &mut usize) -> io::Result<()> {
        if self.stream.write_now(&self.replies, written)? {
            return Ok(());
        }
        let read_excess = self.buffer_bytes - BUFFER_BYTES;
        let replies_excess = self.replies.capacity().saturating_sub(BUFFER_BYTES);
        if !self.charge.set_bytes(read_excess + replies_excess) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let sent = self.stream.write_rest(&self.replies, WRITE_TIMEOUT, written).await;
        self.charge.set_bytes(read_excess);
        sent
    }

    /// Reads more bytes into the buffer, with room for the current frame. Returns their number, 0 at the end of the
    /// stream or at a deadline; `None` if nothing was read but a pending request is ready.
    async fn read(&mut self, frame_bytes: usize) -> io::Result<Option<usize>> {
        if frame_bytes > self.buffer_bytes {
            if !self.charge.set_bytes(LARGE_BUFFER_BYTES - BUFFER_BYTES) {
                return Err(ErrorKind::OutOfMemory.into());
            }
            self.buffer_bytes = LARGE_BUFFER_BYTES;
        } else if self.unanswered.is_empty() && self.buffer_bytes > BUFFER_BYTES {
            self.unanswered = BytesMut::new();
            self.charge.set_bytes(0);
            self.buffer_bytes = BUFFER_BYTES;
        }
        self.unanswered.reserve(self.buffer_bytes.saturating_sub(self.unanswered.len()));
        loop {
            if self.has_answered_all() {
                self.activity.set_idle(self.last_batch_at);
            }
            let wakeup = self.await_wakeup().await?;
            if !self.activity.set_working() {
                self.stream.discard_unread();
                return Err(ErrorKind::ConnectionAborted.into());
            }
            if wakeup == Wakeup::Timeout {
                return Ok(Some(0));
            }
            self.seat.admit().await;
            if wakeup == Wakeup::PendingReady {
                return Ok(None);
            }
            if let Some(count) = self.stream.try_read(&mut self.unanswered)? {
                self.may_have_more = self.unanswered.len() == self.unanswered.capacity();
                return Ok(Some(count));
            }
        }
    }

    /// Whether the connection can be closed without dropping a request that was read.
    fn has_answered_all(&self) -> bool {
        self.handler.is_greeted()
            && self.unanswered.is_empty()
            && self.handler.pending.is_empty()
            && !self.write_closed
    }

    /// Waits for input, a deadline or a pending request. Reads nothing.
    async fn await_wakeup(&mut self) -> io::Result<Wakeup> {
        if std::mem::take(&mut self.may_have_more) {
            // `readable` returns at once while the socket has input, so the task must yield here.
            tokio::task::yield_now().await;
        }
        if self.hello_deadline.is_none() && self.frame_deadline.is_none() && self.handler.pending.is_empty() {
            self.stream.readable().await?;
            return Ok(Wakeup::Input);
        }
        tokio::select! {
            biased;
            readable = self.stream.readable() => readable.map(|()| Wakeup::Input),
            () = await_deadline(&mut self.hello_deadline) => Ok(Wakeup::Timeout),
            () = await_deadline(&mut self.frame_deadline) => Ok(Wakeup::Timeout),
            () = self.handler.pending.ready(&self.clock) => Ok(Wakeup::PendingReady),
        }
    }

    /// Answers one batch of the frames in the buffer.
    fn answer(&mut self, decider: &Mutex<Decider>) -> NextStep {
        let batch = {
            // Uncontended: each thread has its own decider, and this block does not await.
            let mut decider = decider.lock();
            let mut batch = self.handler.answer_batch(&mut decider, &self.unanswered, &mut self.replies);
            if !self.handler.pending.is_empty() {
                // Before the connection closes, all pending requests are answered.
                let closes = batch.next == NextStep::Close;
                if !self.handler.answer_pending(closes, &mut decider, &mut self.replies) {
                    batch.next = NextStep::Close;
                }
            }
            batch
        };
        self.last_batch_at = batch.at;
        self.unanswered.advance(batch.consumed);
        self.update_deadlines(batch.consumed > 0, batch.next);
        batch.next
    }

    /// Sets and clears the deadlines. Further bytes of the same frame do not extend its deadline.
    fn update_deadlines(&mut self, progress: bool, next: NextStep) {
        if self.handler.is_greeted() {
            self.hello_deadline = None;
        }
        let frame_incomplete = !self.unanswered.is_empty() && matches!(next, NextStep::Read { .. });
        if !frame_incomplete {
            self.frame_deadline = None;
        } else if progress || self.frame_deadline.is_none() {
            self.frame_deadline = Some(Box::pin(sleep(FRAME_TIMEOUT)));
        }
    }

    /// During a drain, answers all pending requests and writes GOODBYE.
    async fn write_goodbye(&mut self, shared: &ServerState, decider: &Mutex<Decider>) -> io::Result<()> {
        if !shared.connections.is_draining() {
            return Ok(());
        }
        if !self.handler.pending.is_empty() {
            let mut decider = decider.lock();
            self.handler.answer_pending(true, &mut decider, &mut self.replies);
        }
        encode_reply(&mut self.replies, &WireReply::Goodbye { reason: "draining" });
        self.stream.write_rest(&self.replies, WRITE_TIMEOUT, &mut 0).await
    }
}

/// The event that ends the wait of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wakeup {
    /// Bytes, or the end of the stream.
    Input,
    /// A pending request can be answered.
    PendingReady,
    /// HELLO, or the rest of a frame, was not received in time.
    Timeout,
}

/// Waits for a deadline; forever without one.
async fn await_deadline(deadline: &mut Option<Pin<Box<Sleep>>>) {
    match deadline {
        Some(deadline) => deadline.await,
        None => std::future::pending().await,
    }
}

/// The idle size: room for about 80 typical requests. It grows to one frame of the largest size while needed.
const BUFFER_BYTES: usize = 4_096;

/// The size of a read buffer while a larger frame is read.
const LARGE_BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX;

/// Frees the permit of a peer that connects and sends nothing.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Counted from the first byte of a frame, so that a slow trickle of bytes does not extend it.
const FRAME_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest wait for a peer that reads none of its replies.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
