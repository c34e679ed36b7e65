//! An open connection: batches go out in one write each, replies come back in the order of the commands. Any
//! doubt about that order closes the connection; a command without a waiting caller keeps its position in the
//! queue.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep};

use super::failure::{FailureClass, LinkError};
use super::frame::Scanner;
use super::reply_timeout::ReplyTimeout;
use crate::clock::read_boot_nanos;

pub(super) type CommandResult = Result<Value, LinkError>;

/// A byte stream over TCP, TLS or a Unix socket.
pub(super) trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for S {}

/// Commands of one write and the receivers of their replies, in order.
#[derive(Debug)]
pub(super) struct CommandBatch {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) replies: Vec<oneshot::Sender<CommandResult>>,
    /// Held until the bytes have left the queue.
    pub(super) queued: Queued,
}

/// A count of queued bytes, released on drop.
#[derive(Debug)]
pub(super) struct Queued {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Queued {
    /// Counts `bytes`; `None` if the queue is full.
    pub(super) fn take(all: &Arc<AtomicUsize>, bytes: usize) -> Option<Queued> {
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let queued = Queued { all: Arc::clone(all), bytes };
        // An empty queue accepts a batch of any size.
        (before == 0 || before + bytes <= QUEUED_BYTES_MAX).then_some(queued)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl CommandBatch {
    /// Fails all commands of the batch, of which nothing was sent.
    pub(super) fn refuse(self, why: &LinkError) {
        for reply in self.replies {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

struct PendingReplies {
    since_nanos: u64,
    reply: oneshot::Sender<CommandResult>,
}

pub(super) struct Conversation {
    reader: ReadHalf<Box<dyn ServerStream>>,
    writer: WriteHalf<Box<dyn ServerStream>>,
    incoming: Vec<u8>,
    scanner: Scanner,
    outgoing: Vec<u8>,
    written: usize,
    is_flushed: bool,
    waiting: VecDeque<PendingReplies>,
    /// The timeout of the oldest command.
    lapse: Option<Pin<Box<Sleep>>>,
    /// Whether any command got a reply other than an error.
    pub(super) was_of_use: bool,
}

impl Conversation {
    pub(super) fn new(stream: Box<dyn ServerStream>) -> Conversation {
        let (reader, writer) = tokio::io::split(stream);
        Conversation {
            reader,
            writer,
            incoming: Vec::new(),
            scanner: Scanner::default(),
            outgoing: Vec::new(),
            written: 0,
            is_flushed: true,
            waiting: VecDeque::new(),
            lapse: None,
            was_of_use: false,
        }
    }

    /// Sends the greeting and returns its replies and their time in µs. Runs before any command; the caller sets
    /// the timeout.
    pub(super) async fn greet(
        &mut self,
        commands: &[u8],
        count: usize,
    ) -> Result<(Vec<Value>, u64), LinkError> {
        let since = read_boot_nanos();
        self.writer.write_all(commands).await.map_err(|error| LinkError::of_io(&error))?;
        self.writer.flush().await.map_err(|error| LinkError::of_io(&error))?;
        let mut replies = Vec::with_capacity(count);
        while replies.len() < count {
            match self.next_reply()? {
                Some(reply) => replies.push(reply),
                None => self.read().await?,
            }
        }
        Ok((replies, micros_since(since)))
    }

    /// Sends batches and delivers replies until the connection fails, and returns the failure; `None` once
    /// the inbox is closed.
    pub(super) async fn go_on(
        &mut self,
        inbox: &mut mpsc::Receiver<CommandBatch>,
        patience: &mut ReplyTimeout,
        mut told: impl FnMut(&ReplyTimeout),
    ) -> Option<LinkError> {
        loop {
            let has_room = self.outgoing.len() < OUTGOING_BYTES_MAX && self.waiting.len() < WAITING_MAX;
            let lapse = async {
                match &mut self.lapse {
                    Some(sleep) => sleep.as_mut().await,
                    None => std::future::pending().await,
                }
            };
            let step = tokio::select! {
                biased;
                // Before the timeout: a process that was stopped finds both ready.
                read = read_some(&mut self.reader, &mut self.incoming) => match read {
                    Ok(()) => self.hand_out(patience, &mut told),
                    Err(error) => Err(error),
                },
                () = lapse => {
                    patience.lapsed();
                    Err(LinkError::new(FailureClass::Timeout, "no reply in time"))
                }
                batch = inbox.recv(), if has_room => match batch {
                    Some(batch) => { self.take_all(batch, inbox, patience); Ok(()) }
                    None => return None,
                },
                written = write_some(&mut self.writer, self.outgoing.get(self.written..).unwrap_or_default()),
                    if !self.is_flushed => written.map(|written| self.has_written(written)),
            };
            if let Err(error) = step {
                return Some(error);
            }
        }
    }

    pub(super) fn end(self, why: &LinkError) {
        for waiting in self.waiting {
            let _ = waiting.reply.send(Err(why.clone().of_sent()));
        }
    }

    /// Takes a batch and those queued behind it, for one write.
    fn take_all(
        &mut self,
        first: CommandBatch,
        inbox: &mut mpsc::Receiver<CommandBatch>,
        patience: &ReplyTimeout,
    ) {
        let mut next = Some(first);
        let since_nanos = read_boot_nanos();
        while let Some(batch) = next.take() {
            self.outgoing.extend_from_slice(&batch.bytes);
            self.waiting.extend(batch.replies.into_iter().map(|reply| PendingReplies { since_nanos, reply }));
            drop(batch.queued);
            if self.outgoing.len() < OUTGOING_BYTES_MAX && self.waiting.len() < WAITING_MAX {
                next = inbox.try_recv().ok();
            }
        }
        self.is_flushed = false;
        if self.lapse.is_none() && !self.waiting.is_empty() {
            self.lapse = Some(Box::pin(sleep(patience.timeout())));
        }
    }

    fn has_written(&mut self, written: usize) {
        if self.written == self.outgoing.len() {
            // Nothing was left to write, so this was the flush.
            self.is_flushed = true;
            self.outgoing.clear();
            self.outgoing.shrink_to(BUFFER_BYTES_KEPT);
            self.written = 0;
        } else {
            self.written += written;
        }
    }

    fn hand_out(
        &mut self,
        patience: &mut ReplyTimeout,
        told: &mut impl FnMut(&ReplyTimeout),
    ) -> Result<(), LinkError> {
        while let Some(reply) = self.next_reply()? {
            let Some(waiting) = self.waiting.pop_front() else {
                return Err(LinkError::new(FailureClass::Protocol, "a reply to nothing that was asked"));
            };
            patience.came(micros_since(waiting.since_nanos));
            told(patience);
            let failed = match &reply {
                Value::ServerError(error) => Some(LinkError::of_reply(error)),
                _ => None,
            };
            self.was_of_use |= failed.is_none();
            // The caller may have stopped waiting.
            let _ = waiting.reply.send(Ok(reply));
            self.lapse = self.waiting.front().map(|next| {
                let waited = std::time::Duration::from_micros(micros_since(next.since_nanos));
                Box::pin(sleep(patience.timeout().saturating_sub(waited)))
            });
            if let Some(failed) = failed.filter(|failed| failed.class.ends_the_connection()) {
                return Err(failed);
            }
        }
        if self.incoming.is_empty() {
            self.incoming.shrink_to(BUFFER_BYTES_KEPT);
        }
        Ok(())
    }

    fn next_reply(&mut self) -> Result<Option<Value>, LinkError> {
        let taken = self.scanner.take(&mut self.incoming);
        taken.map_err(|unsound| LinkError::new(FailureClass::Protocol, unsound.to_string()))
    }

    async fn read(&mut self) -> Result<(), LinkError> {
        read_some(&mut self.reader, &mut self.incoming).await
    }
}

/// Reads available bytes, in bounded pieces. Cancellation-safe.
async fn read_some(
    reader: &mut ReadHalf<Box<dyn ServerStream>>,
    incoming: &mut Vec<u8>,
) -> Result<(), LinkError> {
    incoming.reserve(READ_BYTES);
    match reader.read_buf(incoming).await {
        Ok(0) => Err(LinkError::new(FailureClass::Down, "the server closed the connection")),
        Ok(_) => Ok(()),
        Err(error) => Err(LinkError::of_io(&error)),
    }
}

/// Writes some bytes, or flushes if there are none, as TLS may hold back the end. Cancellation-safe.
async fn write_some(writer: &mut WriteHalf<Box<dyn ServerStream>>, bytes: &[u8]) -> Result<usize, LinkError> {
    let done = if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await };
    match done {
        Ok(0) if !bytes.is_empty() => {
            Err(LinkError::new(FailureClass::Down, "the connection takes nothing more"))
        }
        Ok(written) => Ok(written),
        Err(error) => Err(LinkError::of_io(&error)),
    }
}

fn micros_since(nanos: u64) -> u64 {
    read_boot_nanos().saturating_sub(nanos) / 1_000
}

/// Bytes queued for a server that has stopped reading: 100 times a tick of sixteen full batches.
const QUEUED_BYTES_MAX: usize = 8 << 20;

/// Bytes taken from the queue and not yet written.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

/// The most commands without a reply.
const WAITING_MAX: usize = 16_384;

const READ_BYTES: usize = 16 << 10;

/// The capacity that an empty buffer keeps.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
