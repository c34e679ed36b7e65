//! The bounded queue between logging code and standard error. One thread writes. Lines that cannot be queued
//! or written are dropped and counted; no caller waits.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::warn;

use crate::clock::read_boot_nanos;
use crate::terms::is_deceptive;

pub(super) struct LogQueue {
    /// Bounded by `queued_bytes`.
    sender: Sender<Box<[u8]>>,
    /// Bytes that are queued and not yet written, with [`LINE_BYTES`] for each line.
    queued_bytes: AtomicUsize,
    dropped: AtomicU64,
    /// Whether the log thread runs. Until then callers write all that the descriptor accepts at once.
    has_thread: AtomicBool,
    writer: Mutex<LogWriter>,
}

struct LogWriter {
    receiver: Receiver<Box<[u8]>>,
    out: Box<dyn AsFd + Send>,
    /// The line that is being written, and the bytes already written of it.
    line: Option<(Box<[u8]>, usize)>,
    /// Whether the last line is incomplete because the rest could not be written.
    is_torn: bool,
    /// The dropped lines at the last report, and its time in ns.
    reported: (u64, u64),
}

impl LogQueue {
    pub(super) fn new(out: impl AsFd + Send + 'static) -> Arc<LogQueue> {
        let (sender, receiver) = channel();
        let writer = LogWriter {
            receiver,
            out: Box::new(out),
            line: None,
            is_torn: false,
            reported: (0, read_boot_nanos()),
        };
        Arc::new(LogQueue {
            sender,
            queued_bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            has_thread: AtomicBool::new(false),
            writer: Mutex::new(writer),
        })
    }

    /// Returns the lines dropped because the queue was full or the descriptor could not be written.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts a line that was dropped elsewhere.
    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes lines as they come, forever: the work of the log thread.
    pub(super) fn write_for_ever(&self) {
        let mut writer = self.writer.lock();
        self.has_thread.store(true, Ordering::SeqCst);
        loop {
            writer.drain(self, |out| is_writable(out, None));
            writer.report_dropped(self);
            // Blocks until the next line: this queue holds a sender, so the channel never closes.
            let Ok(line) = writer.receiver.recv() else { return };
            writer.line = Some((line, 0));
        }
    }

    /// Waits until every line is written, at most this long. Without a log thread the caller writes them.
    pub(super) fn flush(&self, within: Duration) {
        let begin = read_boot_nanos();
        let left = || within.saturating_sub(Duration::from_nanos(read_boot_nanos().saturating_sub(begin)));
        while self.queued_bytes.load(Ordering::SeqCst) > 0 && !left().is_zero() {
            if let Some(mut writer) = self.writer.try_lock() {
                writer.drain(self, |out| is_writable(out, Some(left())));
            }
            std::thread::sleep(FLUSH_LOOK);
        }
    }

    fn push(&self, line: &[u8]) {
        let bytes = line.len() + LINE_BYTES;
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if queued > BYTES_MAX || self.sender.send(line.into()).is_err() {
            self.queued_bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.count_dropped();
        }
        if !self.has_thread.load(Ordering::SeqCst)
            && let Some(mut writer) = self.writer.try_lock()
        {
            writer.drain(self, |out| is_writable(out, Some(Duration::ZERO)));
        }
    }
}

/// One call is one line, as the subscriber formats a line before it writes it.
impl Write for &LogQueue {
    /// Queues a whole line. A name in it may be of a client, and must not look like another line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let hides = |character| is_deceptive(character) && !character.is_ascii_control();
        match str::from_utf8(line) {
            Ok(text) if !text.is_ascii() && text.contains(hides) => {
                self.push(text.replace(hides, "\u{fffd}").as_bytes());
            }
            _ => self.push(line),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogWriter {
    /// Writes queued lines until none is left or the descriptor is not ready.
    fn drain(&mut self, queue: &LogQueue, is_ready: impl Fn(BorrowedFd<'_>) -> bool) {
        loop {
            let line = self.line.take().or_else(|| Some((self.receiver.try_recv().ok()?, 0)));
            let Some((line, mut written)) = line else { return };
            let done = loop {
                if written == line.len() {
                    break Ok(());
                }
                if !is_ready(self.out.as_fd()) {
                    self.line = Some((line, written));
                    return;
                }
                match self.write(&line, &mut written) {
                    Ok(()) | Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => break Err(error),
                }
            };
            if done.is_err() {
                self.is_torn |= written > 0;
                queue.count_dropped();
            }
            queue.queued_bytes.fetch_sub(line.len() + LINE_BYTES, Ordering::SeqCst);
        }
    }

    /// Writes the next piece of a line; a new line after an incomplete one begins with a newline. A pipe that
    /// polls as ready accepts a piece without waiting.
    fn write(&mut self, line: &[u8], written: &mut usize) -> Result<(), Errno> {
        if self.is_torn && *written == 0 {
            rustix::io::write(self.out.as_fd(), b"\n")?;
            self.is_torn = false;
            return Ok(());
        }
        let rest = line.get(*written..).unwrap_or_default();
        let piece = rest.get(..PIECE_BYTES).unwrap_or(rest);
        match rustix::io::write(self.out.as_fd(), piece)? {
            0 => Err(Errno::IO),
            count => {
                *written += count;
                Ok(())
            }
        }
    }

    /// Logs the number of dropped lines once writing works again.
    fn report_dropped(&mut self, queue: &LogQueue) {
        let (dropped, now) = (queue.dropped(), read_boot_nanos());
        let (reported, at) = self.reported;
        let is_due = now.saturating_sub(at) >= u64::try_from(REPORT_EVERY.as_nanos()).unwrap_or(u64::MAX);
        if dropped > reported && is_due {
            self.reported = (dropped, now);
            warn!(
                lines = dropped - reported,
                "lines of the log were dropped: standard error did not take them"
            );
        }
    }
}

/// Writes a line at once or not at all, past the queue, without waiting. Returns whether it was written.
pub(super) fn write_at_once(out: impl AsFd, line: &[u8]) -> bool {
    let line = line.get(..PIECE_BYTES).unwrap_or(line);
    is_writable(out.as_fd(), Some(Duration::ZERO)) && rustix::io::write(out, line) == Ok(line.len())
}

/// Whether a descriptor becomes writable, or reports an error, within this time; `None`: no limit.
fn is_writable(out: BorrowedFd<'_>, within: Option<Duration>) -> bool {
    let within = within.and_then(|within| Timespec::try_from(within).ok());
    let mut polled = [PollFd::new(&out, PollFlags::OUT)];
    match poll(&mut polled, within.as_ref()) {
        Ok(count) => count > 0,
        // If polling fails, the write is tried: its error is more precise.
        Err(error) => error != Errno::INTR,
    }
}

/// Enough for a start with a thousand problems in its rules.
const BYTES_MAX: usize = 1 << 20;

/// The memory of a queued line beside its text: its place in the channel, and what the allocator adds.
const LINE_BYTES: usize = 48;

/// `PIPE_BUF`: a pipe that polls as writable has room for this many bytes, and writes them atomically.
const PIECE_BYTES: usize = 4_096;

/// Frequent enough for an exit that takes milliseconds.
const FLUSH_LOOK: Duration = Duration::from_millis(1);

const REPORT_EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::{BYTES_MAX, LogQueue};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn start_thread(queue: &Arc<LogQueue>) {
        let queue = Arc::clone(queue);
        std::thread::spawn(move || queue.write_for_ever());
    }

    #[test]
    fn drops_and_counts_lines_when_full_and_never_waits() {
        for has_thread in [false, true] {
            let (reader, out) = UnixStream::pair().unwrap();
            let queue = LogQueue::new(out);
            if has_thread {
                start_thread(&queue);
            }
            let line = [&[b'x'; 999][..], b"\n"].concat();
            // More than the queue and the socket hold.
            let lines = 2 * (BYTES_MAX / line.len());
            (0..lines).for_each(|_| (&*queue).write_all(&line).unwrap());
            let dropped = usize::try_from(queue.dropped()).unwrap();
            assert!(dropped > 0 && queue.queued_bytes.load(Ordering::SeqCst) <= BYTES_MAX);
            queue.flush(Duration::from_millis(5));
            assert!(queue.queued_bytes.load(Ordering::SeqCst) > 0, "nobody reads");
            // Once the reader reads again, the queued lines arrive whole.
            let read = std::thread::spawn(move || {
                let lines = BufReader::new(reader).lines().take(lines - dropped);
                lines.map(Result::unwrap).all(|line| line.len() == 999)
            });
            queue.flush(PATIENCE);
            assert!(read.join().unwrap());
        }
    }
}
