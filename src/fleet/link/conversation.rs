//! One connection that is up: batches go out in one write each, replies come back in the order of the calls. Whatever raises a
//! doubt about that order ends the connection; a call whose caller has gone still has its place in the line.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep};

use super::class::{Class, LinkError};
use super::frame::Scanner;
use super::patience::Patience;
use crate::clock::boot_nanos;

/// What a call comes to.
pub(super) type Answer = Result<Value, LinkError>;

/// Bytes that come and go, over TCP, TLS or a Unix socket.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Commands that go out together, and who waits for their replies, in order.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) replies: Vec<oneshot::Sender<Answer>>,
    /// Held until the bytes have left the line.
    pub(super) queued: Queued,
}

/// Bytes that count as waiting while this lives.
#[derive(Debug)]
pub(super) struct Queued {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Queued {
    /// Counts so many bytes, unless that is too many.
    pub(super) fn take(all: &Arc<AtomicUsize>, bytes: usize) -> Option<Queued> {
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let queued = Queued { all: Arc::clone(all), bytes };
        // One batch of any size may always wait.
        (before == 0 || before + bytes <= QUEUED_BYTES_MAX).then_some(queued)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Batch {
    /// Tells everyone that nothing was sent.
    pub(super) fn refuse(self, why: &LinkError) {
        for reply in self.replies {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

/// A call that has no reply yet.
struct Waiting {
    since_nanos: u64,
    reply: oneshot::Sender<Answer>,
}

/// A connection.
pub(super) struct Conversation {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    incoming: Vec<u8>,
    scanner: Scanner,
    outgoing: Vec<u8>,
    written: usize,
    is_flushed: bool,
    waiting: VecDeque<Waiting>,
    /// When the first in line has waited for too long.
    lapse: Option<Pin<Box<Sleep>>>,
    /// Whether any call has had a good reply.
    pub(super) was_of_use: bool,
}

impl Conversation {
    pub(super) fn new(stream: Box<dyn Stream>) -> Conversation {
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

    /// Says these and returns their replies, with the microseconds that it took. Before anything else is said; the caller
    /// knows how long to wait.
    pub(super) async fn greet(
        &mut self,
        commands: &[u8],
        count: usize,
    ) -> Result<(Vec<Value>, u64), LinkError> {
        let since = boot_nanos();
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

    /// Sends what comes in and hands out what comes back, until the connection is of no more use, which is returned. `None`:
    /// nobody will send anything any more.
    pub(super) async fn go_on(
        &mut self,
        inbox: &mut mpsc::Receiver<Batch>,
        patience: &mut Patience,
        mut told: impl FnMut(&Patience),
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
                // Before the lapse: a process that was stopped finds both true.
                read = read_some(&mut self.reader, &mut self.incoming) => match read {
                    Ok(()) => self.hand_out(patience, &mut told),
                    Err(error) => Err(error),
                },
                () = lapse => {
                    patience.lapsed();
                    Err(LinkError::new(Class::Timeout, "no reply in time"))
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

    /// Tells everyone who waits that there will be no reply.
    pub(super) fn end(self, why: &LinkError) {
        for waiting in self.waiting {
            let _ = waiting.reply.send(Err(why.clone().of_sent()));
        }
    }

    /// Takes a batch, and all behind it: they go out in one write.
    fn take_all(&mut self, first: Batch, inbox: &mut mpsc::Receiver<Batch>, patience: &Patience) {
        let mut next = Some(first);
        let since_nanos = boot_nanos();
        while let Some(batch) = next.take() {
            self.outgoing.extend_from_slice(&batch.bytes);
            self.waiting.extend(batch.replies.into_iter().map(|reply| Waiting { since_nanos, reply }));
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
            // There was nothing left to write, so this was the flush.
            self.is_flushed = true;
            self.outgoing.clear();
            self.outgoing.shrink_to(BUFFER_BYTES_KEPT);
            self.written = 0;
        } else {
            self.written += written;
        }
    }

    /// Hands out what has come.
    fn hand_out(
        &mut self,
        patience: &mut Patience,
        told: &mut impl FnMut(&Patience),
    ) -> Result<(), LinkError> {
        while let Some(reply) = self.next_reply()? {
            let Some(waiting) = self.waiting.pop_front() else {
                return Err(LinkError::new(Class::Protocol, "a reply to nothing that was asked"));
            };
            patience.came(micros_since(waiting.since_nanos));
            told(patience);
            let failed = match &reply {
                Value::ServerError(error) => Some(LinkError::of_reply(error)),
                _ => None,
            };
            self.was_of_use |= failed.is_none();
            // Whoever asked may have gone.
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
        taken.map_err(|unsound| LinkError::new(Class::Protocol, unsound.to_string()))
    }

    async fn read(&mut self) -> Result<(), LinkError> {
        read_some(&mut self.reader, &mut self.incoming).await
    }
}

/// Reads what has come, a bounded piece at a time. Loses nothing when it is given up.
async fn read_some(reader: &mut ReadHalf<Box<dyn Stream>>, incoming: &mut Vec<u8>) -> Result<(), LinkError> {
    incoming.reserve(READ_BYTES);
    match reader.read_buf(incoming).await {
        Ok(0) => Err(LinkError::new(Class::Down, "the server closed the connection")),
        Ok(_) => Ok(()),
        Err(error) => Err(LinkError::of_io(&error)),
    }
}

/// Writes some of these bytes; flushes once there are none: TLS may hold back the end. Loses nothing when it is given up.
async fn write_some(writer: &mut WriteHalf<Box<dyn Stream>>, bytes: &[u8]) -> Result<usize, LinkError> {
    let done = if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await };
    match done {
        Ok(0) if !bytes.is_empty() => Err(LinkError::new(Class::Down, "the connection takes nothing more")),
        Ok(written) => Ok(written),
        Err(error) => Err(LinkError::of_io(&error)),
    }
}

fn micros_since(nanos: u64) -> u64 {
    boot_nanos().saturating_sub(nanos) / 1_000
}

/// What waits in the line of a server that has stopped reading; a tick of sixteen full batches is a hundredth of it.
const QUEUED_BYTES_MAX: usize = 8 << 20;

/// And what has been taken from there.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

/// Calls without a reply.
const WAITING_MAX: usize = 16_384;

const READ_BYTES: usize = 16 << 10;

/// What a buffer keeps when it is empty.
const BUFFER_BYTES_KEPT: usize = 64 << 10;
