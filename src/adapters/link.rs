//! The connection to a decision thread that all requests of a client's connection share: as many in flight as there are streams, each
//! with its id.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_client::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::exchange::{SessionName, WireAnswer, receive};
use super::handler::deadline;

/// The connection, opened when a request needs it.
#[derive(Debug, Default)]
pub(super) struct SharedLink {
    link: Mutex<Option<Arc<Link>>>,
    last_id: AtomicU64,
}

/// An open connection, until this and the requests sent on it drop.
#[derive(Debug)]
struct Link {
    session: Option<SessionName>,
    frames: mpsc::UnboundedSender<QueuedFrames>,
    pending: Arc<PendingAnswers>,
    _stop: DropGuard,
}

/// The requests in flight, with the receivers of their answers; `None`: the connection has ended. An answer of `None`: the request
/// was not read.
type PendingAnswers = Mutex<Option<HashMap<u64, oneshot::Sender<Option<WireAnswer>>>>>;

/// The frames of requests that are sent together.
#[derive(Debug)]
struct QueuedFrames {
    bytes: Vec<u8>,
    /// Whether a decision thread may have read a part.
    is_written: Arc<AtomicBool>,
}

/// The replies to requests that were sent together, and whether these were written.
type SentRequests = (Vec<oneshot::Receiver<Option<WireAnswer>>>, Arc<AtomicBool>);

/// A request: its id and its frame.
pub(super) type NumberedFrame = (u64, Vec<u8>);

impl SharedLink {
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends requests of a session together and returns their replies in the same order, within the deadline of every client.
    pub(super) async fn exchange(
        &self,
        session: Option<SessionName>,
        open: impl Fn() -> io::Result<StdStream>,
        requests: &[NumberedFrame],
    ) -> Result<Vec<WireAnswer>, Reason> {
        let mut used = None;
        let exchange = self.try_exchange(session, open, requests, &mut used);
        tokio::time::timeout(deadline(), exchange).await.unwrap_or_else(|_| {
            // Its decision thread does not answer in time. Requests that were sent later still wait.
            let is_used = |link: &mut Arc<Link>| used.as_ref().is_some_and(|used| Arc::ptr_eq(link, used));
            drop(self.link.lock().take_if(is_used));
            Err(Reason::Timeout)
        })
    }

    async fn try_exchange(
        &self,
        session: Option<SessionName>,
        open: impl Fn() -> io::Result<StdStream>,
        requests: &[NumberedFrame],
        used: &mut Option<Arc<Link>>,
    ) -> Result<Vec<WireAnswer>, Reason> {
        for _ in 0..2 {
            let (pending, is_written) = self.send(session, &open, requests, used)?;
            let (mut answers, mut are_unread) = (Vec::with_capacity(requests.len()), true);
            for answer in pending {
                let answer = answer.await;
                are_unread &= matches!(answer, Ok(None));
                answers.extend(answer.ok().flatten());
            }
            if answers.len() == requests.len() {
                return Ok(answers);
            }
            // Only a connection that was closed while it was idle is replaced: requests that were read may have been charged.
            if is_written.load(Ordering::Relaxed) && !are_unread {
                break;
            }
        }
        Err(Reason::Unreachable)
    }

    fn send(
        &self,
        session: Option<SessionName>,
        open: impl Fn() -> io::Result<StdStream>,
        requests: &[NumberedFrame],
        used: &mut Option<Arc<Link>>,
    ) -> Result<SentRequests, Reason> {
        let mut link = self.link.lock();
        let is_usable = |link: &Arc<Link>| link.session == session && link.pending.lock().is_some();
        if !link.as_ref().is_some_and(is_usable) {
            *link = Some(Link::over(session, open().map_err(|_| Reason::Unreachable)?)?.into());
        }
        used.clone_from(&link);
        let Some(link) = link.as_ref() else { return Err(Reason::Unreachable) };
        let mut pending = link.pending.lock();
        let Some(pending) = pending.as_mut().filter(|pending| pending.len() < PENDING_MAX) else {
            return Err(Reason::Unreachable);
        };
        let mut answers = Vec::with_capacity(requests.len());
        let (mut bytes, is_written) = (Vec::new(), Arc::<AtomicBool>::default());
        for (id, frame) in requests {
            let (tell, answer) = oneshot::channel();
            pending.insert(*id, tell);
            answers.push(answer);
            bytes.extend_from_slice(frame);
        }
        // Without its task the pending answers are dropped.
        let _ = link.frames.send(QueuedFrames { bytes, is_written: Arc::clone(&is_written) });
        Ok((answers, is_written))
    }
}

impl Link {
    fn over(session: Option<SessionName>, stream: StdStream) -> Result<Link, Reason> {
        let stream = UnixStream::from_std(stream).map_err(|_| Reason::Unreachable)?;
        let (reader, writer) = stream.into_split();
        let (frames, queue) = mpsc::unbounded_channel();
        let pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let stop = CancellationToken::new();
        let (answered, stopped) = (Arc::clone(&pending), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = write(writer, queue) => {}
                () = read(reader, &answered) => {}
                () = stopped.cancelled() => {}
            }
            *answered.lock() = None;
        });
        Ok(Link { session, frames, pending, _stop: stop.drop_guard() })
    }
}

/// Writes frames until the connection fails.
async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<QueuedFrames>) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, PENDING_MAX).await > 0 {
        let bytes = batch.iter().map(|frames| &*frames.bytes).collect::<Vec<_>>().concat();
        let mut rest = &*bytes;
        while !rest.is_empty() {
            let Ok(written @ 1..) = writer.write(rest).await else { return };
            batch.iter().for_each(|frames| frames.is_written.store(true, Ordering::Relaxed));
            rest = rest.get(written..).unwrap_or_default();
        }
        batch.clear();
    }
}

/// Passes replies on until the connection fails.
async fn read(mut reader: OwnedReadHalf, pending: &PendingAnswers) {
    let mut received = Vec::new();
    loop {
        match receive(&mut reader, &mut received).await {
            Ok(Some((id, answer))) => {
                let is_last = matches!(&answer, WireAnswer::Error(code, _) if code.closes());
                let mut pending = pending.lock();
                let Some(pending) = pending.as_mut() else { return };
                // An ERROR about the connection is the answer to the next request.
                let id = id.or_else(|| pending.keys().min().copied());
                let waits = id.and_then(|id| pending.remove(&id));
                // One that no longer waits has dropped its receiver.
                let _ = waits.map(|waits| waits.send(Some(answer)));
                if is_last {
                    return;
                }
            }
            Ok(None) => {
                let unread = pending.lock().take().unwrap_or_default();
                return unread.into_values().for_each(|waits| drop(waits.send(None)));
            }
            // A malformed reply, or the end.
            Err(_) => return,
        }
    }
}

/// More than the streams of a connection have at once: those that were given up are still answered.
const PENDING_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as StdStream;

    use super::{Reason, SharedLink};
    use crate::protocol::{DecisionReply, Verdict, WireReply, encode_reply};

    /// Frames that the other end only counts.
    const FRAME: [u8; 8] = [7; 8];

    const GOODBYE: u64 = 0;

    /// Reads the frames of both requests and replies to those with these ids, or says GOODBYE.
    fn serve(mut stream: StdStream, ids: &[u64]) {
        let mut frames = [0; 2 * FRAME.len()];
        stream.read_exact(&mut frames).unwrap();
        let mut replies = Vec::new();
        for id in ids {
            let reply = match *id {
                GOODBYE => WireReply::Goodbye { reason: "idle" },
                id => WireReply::Decision(DecisionReply::new(id, Verdict::Allow)),
            };
            encode_reply(&mut replies, &reply);
        }
        stream.write_all(&replies).unwrap();
    }

    /// What each connection does: `None` closes before it reads, else the ids that it answers before it closes. Returns the
    /// number of answers and of opened connections.
    async fn exchange(connections: &[Option<&'static [u64]>]) -> (Result<usize, Reason>, usize) {
        let link = SharedLink::default();
        let opened = Cell::new(0);
        let open = || {
            let (own, served) = StdStream::pair()?;
            own.set_nonblocking(true)?;
            if let Some(ids) = connections[opened.replace(opened.get() + 1)] {
                std::thread::spawn(move || serve(served, ids));
            }
            Ok(own)
        };
        let requests = [1, 2].map(|id| (id, FRAME.to_vec()));
        let answers = link.try_exchange(None, open, &requests, &mut None).await;
        (answers.map(|answers| answers.len()), opened.get())
    }

    #[tokio::test]
    async fn request_out_of_time_ends_no_other() {
        let link = SharedLink::default();
        let (own, mut served) = StdStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let open = || own.try_clone();
        let (sent, mut used) = ([1, 2].map(|id| (id, FRAME.to_vec())), None);
        let late = async {
            let late = link.exchange(None, open, &[(3, FRAME.to_vec())]).await;
            assert_eq!(late.unwrap_err(), Reason::Timeout);
            served.read_exact(&mut [0; FRAME.len()]).unwrap();
            std::thread::spawn(move || serve(served, &[2, 1]));
        };
        let (answers, ()) = tokio::join!(link.try_exchange(None, open, &sent, &mut used), late);
        assert_eq!(answers.unwrap().len(), 2);
    }

    /// A request that was read may have been charged.
    #[tokio::test]
    async fn repeats_only_requests_that_were_not_read() {
        let missed = Err(Reason::Unreachable);
        assert_eq!(exchange(&[Some(&[2, 1])]).await, (Ok(2), 1));
        assert_eq!(exchange(&[Some(&[2, 1, GOODBYE])]).await, (Ok(2), 1));
        assert_eq!(exchange(&[None, Some(&[1, 2])]).await, (Ok(2), 2));
        assert_eq!(exchange(&[Some(&[GOODBYE]), Some(&[1, 2])]).await, (Ok(2), 2));
        assert_eq!(exchange(&[None, None]).await, (missed, 2));
        assert_eq!(exchange(&[Some(&[]), Some(&[1, 2])]).await, (missed, 1));
        assert_eq!(exchange(&[Some(&[1]), Some(&[1, 2])]).await, (missed, 1));
        assert_eq!(exchange(&[Some(&[1, GOODBYE]), Some(&[1, 2])]).await, (missed, 1));
    }
}
