//! One connection: read, answer all that came, write once.

use std::io;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::Shared;
use super::activity::Activity;
use super::answer::{Next, Peer};
use super::connections::Permit;
use super::fair_queue::Seat;
use super::held::Held;
use super::membership::Line;
use super::stream::Stream;
use crate::clock::{Clock, Timestamp};
use crate::engine::Decider;
use crate::protocol::{FRAME_BYTES_MAX, HEADER_BYTES, Reply, encode_reply};

/// Serves a connection until its peer ends it, breaks it, or the daemon drains.
pub(super) async fn serve(
    socket: Arc<UnixStream>,
    permit: Permit,
    seat: Seat,
    shared: Arc<Shared>,
    decider: Arc<Mutex<Decider>>,
) {
    // To set a connection up takes as long as a batch.
    seat.admit().await;
    let activity = permit.activity();
    let line = Line { socket: Arc::clone(&socket), user: permit.user(), number: permit.number() };
    let connection = Stream::new(socket).map(|stream| Connection {
        stream,
        seat,
        activity,
        answered_at: Timestamp::ORIGIN,
        peer: Peer::new(Arc::clone(&shared), line),
        buffer: vec![0; BUFFER_BYTES],
        filled: 0,
        may_have_more: false,
        replies: Vec::new(),
        held: Held::nothing(Arc::clone(&shared), permit.user()),
        hello_due: Some(Box::pin(sleep(HELLO_PATIENCE))),
        frame_due: None,
        is_deaf: false,
        clock: Arc::clone(&shared.clock),
    });
    if let Ok(mut connection) = connection {
        // However it ended, the peer knows as much as we do, and it alone is concerned.
        let _ = connection.run(&shared, &decider).await;
    }
}

struct Connection<'p> {
    stream: Stream,
    seat: Seat,
    activity: &'p Activity,
    /// When the last batch began.
    answered_at: Timestamp,
    peer: Peer,
    buffer: Vec<u8>,
    /// So many bytes of the buffer wait to be answered.
    filled: usize,
    /// The last read filled the buffer.
    may_have_more: bool,
    replies: Vec<u8>,
    /// What the two buffers take beyond what they have at rest, as far as they keep it.
    held: Held,
    /// When HELLO must have come. A healthy connection has neither this nor the next and pays for no timer.
    hello_due: Option<Pin<Box<Sleep>>>,
    /// When the frame that has begun must be whole.
    frame_due: Option<Pin<Box<Sleep>>>,
    /// Nobody is there to read any more. What came before that is done all the same: a release may be behind it.
    is_deaf: bool,
    clock: Arc<Clock>,
}

impl Connection<'_> {
    async fn run(&mut self, shared: &Shared, decider: &Mutex<Decider>) -> io::Result<()> {
        let mut next = Next::Read { frame_bytes: HEADER_BYTES };
        loop {
            match next {
                Next::Close => return Ok(()),
                Next::Continue | Next::Pause => {
                    tokio::task::yield_now().await;
                    self.seat.admit().await;
                }
                Next::Read { frame_bytes } => {
                    if self.read(frame_bytes).await? == Some(0) {
                        self.outwait(shared, decider).await?;
                        return self.say_goodbye(shared, decider).await;
                    }
                }
            }
            next = self.answer(decider);
            if next != Next::Pause && !self.replies.is_empty() {
                self.tell().await?;
            }
        }
    }

    /// Tells the replies to whoever reads them.
    async fn tell(&mut self) -> io::Result<()> {
        let mut count = 0;
        let written = if self.is_deaf { Ok(()) } else { self.send(&mut count).await };
        self.peer.told(count);
        match written {
            Err(error) if is_hang_up(&error) => {
                self.is_deaf = true;
                // Whoever is gone waits for nothing: what is brought for him goes back.
                self.peer.parked.clear();
            }
            written => written?,
        }
        self.replies.clear();
        self.replies.shrink_to(BUFFER_BYTES);
        Ok(())
    }

    /// Who sends no more may still read: what waits for a call is answered first.
    async fn outwait(&mut self, shared: &Shared, decider: &Mutex<Decider>) -> io::Result<()> {
        let is_awaited = |connection: &Connection<'_>| {
            !connection.peer.parked.is_empty() && !connection.is_deaf && !connection.stream.is_gone()
        };
        while is_awaited(self) && !shared.connections.is_draining() {
            self.peer.parked.ready(&self.clock).await;
            let goes_on = {
                let mut decider = decider.lock().unwrap_or_else(PoisonError::into_inner);
                self.peer.answer_parked(false, &mut decider, &mut self.replies)
            };
            self.tell().await?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Sends the replies, waiting for a peer that does not read as long as its user does not hold too much.
    async fn send(&mut self, written: &mut usize) -> io::Result<()> {
        if self.stream.write_now(&self.replies, written)? {
            return Ok(());
        }
        let of_frames = beyond_rest(&self.buffer);
        if !self.held.set(of_frames + beyond_rest(&self.replies)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let sent = self.stream.write_rest(&self.replies, WRITE_PATIENCE, written).await;
        self.held.set(of_frames);
        sent
    }

    /// Reads behind what is there, with room for the frame that has begun. 0 is the end; `None`: nothing was read, and a
    /// request that waits is to be answered.
    async fn read(&mut self, frame_bytes: usize) -> io::Result<Option<usize>> {
        if frame_bytes > self.buffer.len() {
            if !self.held.set(HEADER_BYTES + FRAME_BYTES_MAX - BUFFER_BYTES) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.buffer.resize(HEADER_BYTES + FRAME_BYTES_MAX, 0);
        } else if self.filled == 0 && self.buffer.len() > BUFFER_BYTES {
            self.buffer = vec![0; BUFFER_BYTES];
            self.held.set(0);
        }
        loop {
            if self.has_answered_all() {
                self.activity.rest(self.answered_at);
            }
            let awaited = self.await_input().await?;
            if !self.activity.work() {
                self.stream.discard_unread(&mut self.buffer);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if awaited == Awaited::Late {
                return Ok(Some(0));
            }
            self.seat.admit().await;
            if awaited == Awaited::Call {
                return Ok(None);
            }
            let room = self.buffer.get_mut(self.filled..).unwrap_or_default();
            if let Some(count) = self.stream.try_read(room)? {
                self.may_have_more = count == room.len();
                self.filled += count;
                return Ok(Some(count));
            }
        }
    }

    /// Whether the connection could end here and no request would go without an answer that had been read.
    fn has_answered_all(&self) -> bool {
        self.peer.is_greeted() && self.filled == 0 && self.peer.parked.is_empty() && !self.is_deaf
    }

    /// Waits for whatever is next, without reading it.
    async fn await_input(&mut self) -> io::Result<Awaited> {
        if std::mem::take(&mut self.may_have_more) {
            // A socket that is never empty never makes its task wait.
            tokio::task::yield_now().await;
        }
        if self.hello_due.is_none() && self.frame_due.is_none() && self.peer.parked.is_empty() {
            self.stream.readable().await?;
            return Ok(Awaited::Bytes);
        }
        tokio::select! {
            biased;
            readable = self.stream.readable() => readable.map(|()| Awaited::Bytes),
            () = passed(&mut self.hello_due) => Ok(Awaited::Late),
            () = passed(&mut self.frame_due) => Ok(Awaited::Late),
            () = self.peer.parked.ready(&self.clock) => Ok(Awaited::Call),
        }
    }

    /// Answers what has been read, in one turn of the decision thread.
    fn answer(&mut self, decider: &Mutex<Decider>) -> Next {
        let read = self.buffer.get(..self.filled).unwrap_or_default();
        let turn = {
            // One thread, one decider: nobody else is in here, and nothing below waits.
            let mut decider = decider.lock().unwrap_or_else(PoisonError::into_inner);
            let mut turn = self.peer.answer(&mut decider, read, &mut self.replies);
            if !self.peer.parked.is_empty() {
                // At the end of a connection nobody waits any longer.
                let ends = turn.next == Next::Close;
                if !self.peer.answer_parked(ends, &mut decider, &mut self.replies) {
                    turn.next = Next::Close;
                }
            }
            turn
        };
        self.answered_at = turn.at;
        if turn.consumed > 0 {
            self.buffer.copy_within(turn.consumed..self.filled, 0);
            self.filled -= turn.consumed;
        }
        self.keep_time(turn.consumed > 0, turn.next);
        turn.next
    }

    /// Sets and clears what is due. More bytes of the same frame do not give it more time.
    fn keep_time(&mut self, progress: bool, next: Next) {
        if self.peer.is_greeted() {
            self.hello_due = None;
        }
        let half_a_frame = self.filled > 0 && matches!(next, Next::Read { .. });
        if !half_a_frame {
            self.frame_due = None;
        } else if progress || self.frame_due.is_none() {
            self.frame_due = Some(Box::pin(sleep(FRAME_PATIENCE)));
        }
    }

    /// At the end of a connection that the daemon ended: all that came was answered.
    async fn say_goodbye(&mut self, shared: &Shared, decider: &Mutex<Decider>) -> io::Result<()> {
        if !shared.connections.is_draining() {
            return Ok(());
        }
        if !self.peer.parked.is_empty() {
            let mut decider = decider.lock().unwrap_or_else(PoisonError::into_inner);
            self.peer.answer_parked(true, &mut decider, &mut self.replies);
        }
        encode_reply(&mut self.replies, &Reply::Goodbye { reason: "draining" });
        self.stream.write_rest(&self.replies, WRITE_PATIENCE, &mut 0).await
    }
}

/// What a connection has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// Bytes, or the end of them.
    Bytes,
    /// A request that waits for a call is to be answered.
    Call,
    /// HELLO, or the rest of a frame, did not come in time.
    Late,
}

/// Whether the other end is gone, which says nothing of what it sent before.
fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// What a buffer takes beyond what it has at rest.
fn beyond_rest(buffer: &Vec<u8>) -> usize {
    buffer.capacity().saturating_sub(BUFFER_BYTES)
}

/// Waits for a time that is set; for ever for one that is not.
async fn passed(due: &mut Option<Pin<Box<Sleep>>>) {
    match due {
        Some(due) => due.await,
        None => std::future::pending().await,
    }
}

/// Room for some eighty requests of the common size; grows to one frame for as long as it takes.
const BUFFER_BYTES: usize = 4_096;

/// A peer that connects and says nothing holds a place that others could use.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

/// Counted from the first byte of a frame, so that a drip does not stretch it.
const FRAME_PATIENCE: Duration = Duration::from_secs(1);

/// A peer that takes no byte of its replies for so long will not come back for them.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
