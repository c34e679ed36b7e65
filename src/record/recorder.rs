//! The recorded events, owned, small, and not decoded before they are written; and the bounded queue between decision
//! threads and the writer. A full queue drops events and counts them; no thread waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arc_swap::ArcSwapOption;
use tracing::debug;

use crate::clock::Timestamp;
use crate::engine::{Session, Verdict, WorkOutcome};
use crate::sys;

/// The state of the recording, at most one at a time, and the sender of its queue.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The flag that decisions check: one relaxed load.
    is_on: AtomicBool,
    tape: ArcSwapOption<RecordSender>,
    /// Set while a recording runs.
    is_taken: AtomicBool,
    lines: AtomicU64,
    dropped: AtomicU64,
}

/// The sender's end of the queue.
#[derive(Debug)]
struct RecordSender {
    queue: SyncSender<Noted>,
    /// The one domain to record; `None`: all.
    domain: Option<Box<str>>,
    room: Arc<QueueSpace>,
}

/// The bytes in the queue, and the events dropped.
#[derive(Debug, Default)]
struct QueueSpace {
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another recording is running, and only one may: end it, or wait for its end")]
pub struct AlreadyRecording;

impl Recorder {
    /// Whether a recording runs. This load is a request's only cost while there is none.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether requests of a domain are recorded.
    pub fn wants(&self, domain: &str) -> bool {
        self.tape.load().as_ref().is_some_and(|tape| tape.domain.as_deref().is_none_or(|only| only == domain))
    }

    /// Queues an event, or counts it as dropped when the queue is full. Never waits.
    #[cold]
    #[inline(never)]
    pub fn note(&self, at: Timestamp, who: Option<EventOrigin>, what: NotedKind) {
        let tape = self.tape.load();
        let Some(tape) = tape.as_ref() else { return };
        let bytes = what.heap_bytes();
        let fits = tape.room.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES_MAX;
        if fits && tape.queue.try_send(Noted { at, who, what }).is_ok() {
            return;
        }
        tape.room.bytes.fetch_sub(bytes, Ordering::Relaxed);
        tape.room.dropped.fetch_add(1, Ordering::Relaxed);
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins to record one domain, or all.
    pub fn begin(self: &Arc<Recorder>, domain: Option<&str>) -> Result<RecordReceiver, AlreadyRecording> {
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return Err(AlreadyRecording);
        }
        let (queue, noted) = sync_channel(QUEUE_LINES_MAX);
        let room = Arc::new(QueueSpace::default());
        let tape = RecordSender { queue, domain: domain.map(Into::into), room: Arc::clone(&room) };
        self.tape.store(Some(Arc::new(tape)));
        self.is_on.store(true, Ordering::Relaxed);
        Ok(RecordReceiver { recorder: Arc::clone(self), noted, room })
    }

    pub fn count_lines(&self, lines: u64) {
        self.lines.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the lines written since the daemon started.
    pub fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Returns the events dropped since the daemon started, because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
        self.tape.store(None);
    }
}

/// The receiver's end of the queue. Dropping it ends the recording and allows the next one.
#[derive(Debug)]
pub struct RecordReceiver {
    recorder: Arc<Recorder>,
    noted: Receiver<Noted>,
    room: Arc<QueueSpace>,
}

impl RecordReceiver {
    /// Returns the oldest queued event. Never waits, so senders need not wake the reader.
    pub(super) fn next(&self) -> Option<Noted> {
        let noted = self.noted.try_recv().ok()?;
        self.room.bytes.fetch_sub(noted.what.heap_bytes(), Ordering::Relaxed);
        Some(noted)
    }

    /// Returns the events missing from this recording because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.room.dropped.load(Ordering::Relaxed)
    }

    /// Lowers the priority of the calling thread, which reads and writes, below the decision threads.
    pub fn give_way(&self) {
        if let Err(error) = sys::lower_priority() {
            debug!(%error, "the thread of the recording cannot lower its priority");
        }
    }

    /// Stops queueing events. Queued events can still be read.
    pub fn stop(&self) {
        self.recorder.stop();
    }
}

impl Drop for RecordReceiver {
    fn drop(&mut self) {
        self.recorder.stop();
        self.recorder.is_taken.store(false, Ordering::Release);
    }
}

#[derive(Debug)]
pub(super) struct Noted {
    pub(super) at: Timestamp,
    /// `None` for events that no session caused.
    pub(super) who: Option<EventOrigin>,
    pub(super) what: NotedKind,
}

/// The session that caused an event.
#[derive(Clone, Debug)]
pub struct EventOrigin {
    /// The user (uid) of the client.
    pub user: u32,
    /// The name of the session: from HELLO, or the number of its only connection.
    pub named: [u8; SESSION_BYTES],
    pub session: Session,
}

/// The kind of an event.
#[derive(Debug)]
pub enum NotedKind {
    /// A connection began.
    Hello {
        /// The pool that its leases count in.
        pool: Box<str>,
        /// The number of requests that the process works on at once.
        slots: u32,
    },
    Decided {
        /// The encoded request.
        payload: Box<[u8]>,
        verdict: Verdict,
        refused_by: Option<Box<str>>,
        lease: Option<u64>,
    },
    /// A charge after the request; the payload is the encoded frame.
    Charged(Box<[u8]>),
    Ended(u64, WorkOutcome),
    Renewed(u64),
    /// An application reported a signal of its pool.
    Signal {
        name: Box<str>,
        permille: u16,
    },
    /// The last connection of a session closed; the session ends at this time unless a client reconnects.
    Disconnected(Timestamp),
    SessionEnded,
    /// The engine ran its timed work.
    Tick,
}

impl NotedKind {
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            NotedKind::Decided { payload, refused_by, .. } => {
                payload.len() + refused_by.as_deref().map_or(0, str::len)
            }
            NotedKind::Charged(payload) => payload.len(),
            NotedKind::Hello { pool: name, .. } | NotedKind::Signal { name, .. } => name.len(),
            NotedKind::Ended(..)
            | NotedKind::Renewed(_)
            | NotedKind::Disconnected(_)
            | NotedKind::SessionEnded
            | NotedKind::Tick => 0,
        }
    }
}

/// The 16 bytes of a HELLO name and one byte that marks whether HELLO set it.
pub(crate) const SESSION_BYTES: usize = 17;

/// A third of a second at 100 000 requests/s; the writer polls 200 times a second.
const QUEUE_LINES_MAX: usize = 32_768;

/// Payload bytes, in addition to about 100 bytes per entry. Requests of usual size reach the entry limit
/// first; the largest requests reach this one.
const QUEUE_BYTES_MAX: usize = 16 << 20;
