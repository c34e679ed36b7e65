//! The connection to a decision thread that all requests of a gRPC connection share: many in flight, each with its id.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::adapters::exchange::{WireAnswer, open, read_answer};
use crate::protocol::{FrameSplit, MissReason, split_frame};
use crate::server::Connector;

/// The connection, opened when a request needs it.
#[derive(Debug, Default)]
pub(super) struct SharedLink {
    link: Mutex<Option<Link>>,
    last_id: AtomicU64,
}

/// An open connection, until this drops.
#[derive(Debug)]
struct Link {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    pending: Arc<PendingAnswers>,
    _stop: DropGuard,
}

/// The requests in flight; `None`: the connection has ended.
type PendingAnswers = Mutex<Option<HashMap<u64, oneshot::Sender<WireAnswer>>>>;

/// A request: its id and its frame.
pub(super) type NumberedFrame = (u64, Vec<u8>);

impl SharedLink {
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends requests together and returns their replies in the same order.
    pub(super) async fn exchange(
        &self,
        connector: &Connector,
        user: u32,
        requests: &[NumberedFrame],
    ) -> Result<Vec<WireAnswer>, MissReason> {
        // A second connection, as the first may have been closed while it was idle.
        for _ in 0..2 {
            let mut answers = Vec::with_capacity(requests.len());
            for answer in self.send(connector, user, requests)? {
                answers.extend(answer.await.ok());
            }
            if answers.len() == requests.len() {
                return Ok(answers);
            }
        }
        Err(MissReason::Unreachable)
    }

    /// Closes the connection: its decision thread does not answer in time.
    pub(super) fn close(&self) {
        *self.link.lock() = None;
    }

    fn send(
        &self,
        connector: &Connector,
        user: u32,
        requests: &[NumberedFrame],
    ) -> Result<Vec<oneshot::Receiver<WireAnswer>>, MissReason> {
        let mut link = self.link.lock();
        let is_open = link.as_ref().is_some_and(|link| link.pending.lock().is_some());
        if !is_open {
            *link = Some(Link::open(connector, user)?);
        }
        let Some(link) = link.as_ref() else { return Err(MissReason::Unreachable) };
        let mut pending = link.pending.lock();
        let Some(pending) = pending.as_mut().filter(|pending| pending.len() < PENDING_MAX) else {
            return Err(MissReason::Unreachable);
        };
        let mut answers = Vec::with_capacity(requests.len());
        let mut frames = Vec::new();
        for (id, frame) in requests {
            let (tell, answer) = oneshot::channel();
            pending.insert(*id, tell);
            answers.push(answer);
            frames.extend_from_slice(frame);
        }
        // Without its task the pending answers are dropped.
        let _ = link.frames.send(frames);
        Ok(answers)
    }
}

impl Link {
    fn open(connector: &Connector, user: u32) -> Result<Link, MissReason> {
        let stream = open(connector, NAME, user, None).and_then(UnixStream::from_std);
        let (reader, writer) = stream.map_err(|_| MissReason::Unreachable)?.into_split();
        let (frames, unsent) = mpsc::unbounded_channel();
        let pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let stop = CancellationToken::new();
        let (answered, stopped) = (Arc::clone(&pending), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = write(writer, unsent) => {}
                () = read(reader, &answered) => {}
                () = stopped.cancelled() => {}
            }
            *answered.lock() = None;
        });
        Ok(Link { frames, pending, _stop: stop.drop_guard() })
    }
}

/// Writes frames until the connection fails.
async fn write(mut writer: OwnedWriteHalf, mut unsent: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(mut bytes) = unsent.recv().await {
        while let Ok(more) = unsent.try_recv() {
            bytes.extend_from_slice(&more);
        }
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Passes replies on until the connection fails.
async fn read(mut reader: OwnedReadHalf, pending: &PendingAnswers) {
    let mut received = Vec::new();
    loop {
        match split_frame(&received) {
            FrameSplit::Frame { payload, consumed } => {
                match read_answer(payload) {
                    Ok(None) => {}
                    Ok(Some((Some(id), answer))) => {
                        let waits = pending.lock().as_mut().and_then(|pending| pending.remove(&id));
                        // One that no longer waits has dropped its receiver.
                        let _ = waits.map(|waits| waits.send(answer));
                    }
                    // An ERROR about the connection, or a malformed reply.
                    Ok(Some((None, _))) | Err(_) => return,
                }
                received.drain(..consumed);
            }
            FrameSplit::More { .. } => match reader.read_buf(&mut received).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            },
            FrameSplit::Broken(_) => return,
        }
    }
}

/// More than the streams of a connection have at once: those that were given up are still answered.
const PENDING_MAX: usize = 1_024;

/// The name in HELLO.
const NAME: &str = "envoy";
