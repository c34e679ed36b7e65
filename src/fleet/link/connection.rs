//! An open connection: batches go out in one write each, replies come back in the order of the commands. Any
//! doubt about that order closes the connection; a command without a waiting caller keeps its position in the
//! queue.

use std::collections::VecDeque;
use std::io::Cursor;
use std::time::Duration;

use redis::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use super::failure::{FailureClass, LinkError};
use super::reply_parser::ReplyParser;
use crate::clock::{Timestamp, read_boot_nanos};
use crate::fleet::round_trip::RoundTrip;

pub(super) type CommandResult = Result<Value, LinkError>;

pub(super) trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for S {}

/// Commands of one write and the receivers of their replies, in order.
#[derive(Debug)]
pub(super) struct CommandBatch {
    pub(super) bytes: Vec<u8>,
    pub(super) replies: Vec<oneshot::Sender<CommandResult>>,
    /// Room in the queue, held until the bytes have left it.
    pub(super) room: OwnedSemaphorePermit,
}

impl CommandBatch {
    /// Fails all commands of the batch, of which nothing was sent.
    pub(super) fn refuse(self, why: &LinkError) {
        for reply in self.replies {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

struct PendingReply {
    since: Timestamp,
    reply: oneshot::Sender<CommandResult>,
}

pub(super) struct ServerConnection {
    reader: ReadHalf<Box<dyn ServerStream>>,
    writer: WriteHalf<Box<dyn ServerStream>>,
    incoming: Vec<u8>,
    parser: ReplyParser,
    outgoing: Cursor<Vec<u8>>,
    is_flushed: bool,
    pending: VecDeque<PendingReply>,
    /// Whether any command got a reply other than an error.
    pub(super) was_of_use: bool,
}

impl ServerConnection {
    pub(super) fn new(stream: Box<dyn ServerStream>) -> ServerConnection {
        let (reader, writer) = tokio::io::split(stream);
        ServerConnection {
            reader,
            writer,
            incoming: Vec::with_capacity(READ_BYTES),
            parser: ReplyParser::default(),
            outgoing: Cursor::default(),
            is_flushed: true,
            pending: VecDeque::new(),
            was_of_use: false,
        }
    }

    /// Sends the greeting and returns its replies and their time. Runs before any command; the caller sets
    /// the timeout.
    pub(super) async fn greet(
        &mut self,
        commands: &redis::Pipeline,
    ) -> Result<(Vec<Value>, Duration), LinkError> {
        let since = now();
        self.outgoing = Cursor::new(commands.get_packed_pipeline());
        write(&mut self.writer, &mut self.outgoing).await?;
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            read(&mut self.reader, &mut self.incoming).await?;
            let mut incoming = self.incoming.as_slice();
            while let Some(reply) = self.parser.next(&mut incoming)? {
                replies.push(reply);
            }
        }
        if replies.len() > commands.len() { Err(unasked()) } else { Ok((replies, now().since(since))) }
    }

    /// Sends batches and delivers replies until the connection fails, and returns the failure; `None` once
    /// the inbox is closed.
    pub(super) async fn run(
        &mut self,
        inbox: &mut mpsc::Receiver<CommandBatch>,
        round_trip: &mut RoundTrip,
        on_reply: impl Fn(&RoundTrip),
    ) -> Option<LinkError> {
        loop {
            let waited = self.pending.front().map(|oldest| now().since(oldest.since));
            let left = round_trip.timeout().saturating_sub(waited.unwrap_or_default());
            let step = tokio::select! {
                biased;
                // Before the timeout: a process that was stopped finds both ready.
                read = read(&mut self.reader, &mut self.incoming) => {
                    let delivered = read.and_then(|()| self.deliver(round_trip));
                    on_reply(round_trip);
                    delivered
                }
                () = sleep(left), if waited.is_some() => {
                    round_trip.missed(now());
                    Err(LinkError::new(FailureClass::Timeout, "no reply in time"))
                }
                batch = inbox.recv(), if self.is_flushed && self.pending.len() < PENDING_MAX => {
                    self.take_all(batch?, inbox);
                    Ok(())
                }
                written = write(&mut self.writer, &mut self.outgoing), if !self.is_flushed => {
                    self.is_flushed = true;
                    written
                }
            };
            if let Err(error) = step {
                return Some(error);
            }
        }
    }

    pub(super) fn end(self, why: &LinkError) {
        for pending in self.pending {
            let _ = pending.reply.send(Err(LinkError { may_have_run: true, ..why.clone() }));
        }
    }

    /// Takes a batch and those queued behind it, for one write.
    fn take_all(&mut self, first: CommandBatch, inbox: &mut mpsc::Receiver<CommandBatch>) {
        let mut outgoing = std::mem::take(&mut self.outgoing).into_inner();
        outgoing.clear();
        outgoing.shrink_to(BUFFER_BYTES_KEPT);
        let since = now();
        let mut next = Some(first);
        while let Some(CommandBatch { bytes, replies, room }) = next.take() {
            outgoing.extend_from_slice(&bytes);
            self.pending.extend(replies.into_iter().map(|reply| PendingReply { since, reply }));
            drop(room);
            if outgoing.len() < OUTGOING_BYTES_MAX && self.pending.len() < PENDING_MAX {
                next = inbox.try_recv().ok();
            }
        }
        self.outgoing = Cursor::new(outgoing);
        self.is_flushed = false;
    }

    /// Parses what was read and completes the commands that it replies to.
    fn deliver(&mut self, round_trip: &mut RoundTrip) -> Result<(), LinkError> {
        let mut incoming = self.incoming.as_slice();
        while let Some(reply) = self.parser.next(&mut incoming)? {
            let pending = self.pending.pop_front().ok_or_else(unasked)?;
            let now = now();
            round_trip.record_reply(now.since(pending.since), now);
            let failed = match &reply {
                Value::ServerError(error) => Some(LinkError::of_reply(error)),
                _ => None,
            };
            self.was_of_use |= failed.is_none();
            // The caller may have stopped waiting.
            let _ = pending.reply.send(Ok(reply));
            if let Some(failed) = failed.filter(|failed| failed.class.ends_the_connection()) {
                return Err(failed);
            }
        }
        Ok(())
    }
}

/// Replaces `incoming`, which has been parsed, by the next bytes. Cancellation-safe.
async fn read(reader: &mut ReadHalf<Box<dyn ServerStream>>, incoming: &mut Vec<u8>) -> Result<(), LinkError> {
    incoming.clear();
    match reader.read_buf(incoming).await {
        Ok(0) => Err(LinkError::new(FailureClass::Down, "the server closed the connection")),
        Ok(_) => Ok(()),
        Err(error) => Err(LinkError::of_io(&error)),
    }
}

/// Writes the rest and flushes it, as TLS may hold back the end. If cancelled, it may be called again.
async fn write(
    writer: &mut WriteHalf<Box<dyn ServerStream>>,
    outgoing: &mut Cursor<Vec<u8>>,
) -> Result<(), LinkError> {
    writer.write_all_buf(outgoing).await.map_err(|error| LinkError::of_io(&error))?;
    writer.flush().await.map_err(|error| LinkError::of_io(&error))
}

fn unasked() -> LinkError {
    LinkError::new(FailureClass::Protocol, "a reply without a command")
}

fn now() -> Timestamp {
    Timestamp::from_nanos(read_boot_nanos())
}

/// Bytes taken from the queue and not yet written.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

/// The most commands without a reply.
const PENDING_MAX: usize = 16_384;

const READ_BYTES: usize = 16 << 10;

/// The capacity that an empty buffer keeps.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
