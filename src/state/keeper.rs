//! Writes the tables every minute and at the end, on a thread of its own. Nobody waits for the disk but, at the very end
//! and for a moment only, who ends the daemon.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tracing::{debug, info, warn};

use super::directory::{Directory, Lock};
use super::moment::Moment;
use super::record::Record;
use super::tables::write_tables;
use crate::clock::{Clock, Timestamp};
use crate::engine::Engine;

/// Keeps the engine's tables on disk.
#[derive(Debug)]
pub struct Keeper {
    end: Sender<()>,
    ended: Receiver<bool>,
    lock: Lock,
}

/// What a keeper needs.
#[derive(Debug)]
pub struct Keeping {
    /// Where.
    pub directory: Directory,
    /// Of whom.
    pub engine: Arc<Engine>,
    /// By which clock.
    pub clock: Arc<Clock>,
    /// The file that names this boot.
    pub boot_id: PathBuf,
    /// How often, give or take a tenth. Mostly [`WRITE_EVERY`].
    pub every: Duration,
    /// What is told of it.
    pub record: Arc<Record>,
}

impl Keeper {
    /// A keeper, and the work of its thread.
    pub fn new(keeping: Keeping) -> (Keeper, impl FnMut() + Send + 'static) {
        let ((end, ends), (says_ended, ended)) = (channel(), channel());
        let lock = keeping.directory.lock();
        let mut worker = Worker { keeping, failing_since: None, turns: 0 };
        let work = move || {
            let written = worker.run(&ends);
            // The end may have waited long enough.
            let _ = says_ended.send(written);
        };
        (Keeper { end, ended, lock }, work)
    }

    /// Writes for the last time: nobody asks the engine any more. Returns whether that was done within
    /// [`LAST_WRITE_MAX`]; else what was last written stands. The directory is the next daemon's either way: this process is
    /// to end now.
    #[must_use]
    pub fn finish(self) -> bool {
        drop(self.end);
        let written = self.ended.recv_timeout(LAST_WRITE_MAX).unwrap_or(false);
        self.lock.give_up();
        written
    }
}

struct Worker {
    keeping: Keeping,
    /// When it was last said that nothing can be written, until something can.
    failing_since: Option<Timestamp>,
    turns: u64,
}

impl Worker {
    fn run(&mut self, ends: &Receiver<()>) -> bool {
        loop {
            match ends.recv_timeout(self.next()) {
                Err(RecvTimeoutError::Timeout) => self.write(false),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return self.write(true),
            };
        }
    }

    /// Not all hosts of a fleet that was started together write in the same second.
    fn next(&mut self) -> Duration {
        self.turns += 1;
        let tenth = self.keeping.every / 10;
        let random = siphasher::sip::SipHasher13::new_with_key(&self.keeping.directory.key().0)
            .hash(&self.turns.to_le_bytes());
        let share = u32::try_from(random % 2_000).unwrap_or_default();
        self.keeping.every - tenth + tenth / 1_000 * share
    }

    fn write(&mut self, is_final: bool) -> bool {
        let Keeping { directory, engine, clock, boot_id, record, .. } = &mut self.keeping;
        let now = clock.now();
        // One reading for both, so that the next daemon's timeline goes on to the nanosecond.
        let here = Moment::when(boot_id, clock.boot_nanos_at(now.at));
        let path = directory.tables();
        let written = directory
            .prepare()
            .and_then(|()| write_tables(&path, directory.stamp(), engine, now, &here, is_final));
        match written {
            Ok(bytes) => {
                let took = clock.now().at.since(now.at);
                record.writes.fetch_add(1, Ordering::Relaxed);
                record.bytes.store(bytes, Ordering::Relaxed);
                let took_micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                record.took_micros.store(took_micros, Ordering::Relaxed);
                let seconds = u64::try_from(here.unix_nanos).unwrap_or_default() / NANOS_PER_SECOND;
                record.written_unix_seconds.store(seconds, Ordering::Relaxed);
                debug!(bytes, took_micros, "the tables were written");
                if self.failing_since.take().is_some() {
                    info!(path = %path.display(), "the tables can be written again");
                }
            }
            Err(ref error) => {
                record.failures.fetch_add(1, Ordering::Relaxed);
                let is_told = self.failing_since.is_some_and(|since| now.at.since(since) < TELL_EVERY);
                if !is_told {
                    self.failing_since = Some(now.at);
                    tell(error, &path);
                }
            }
        }
        written.is_ok()
    }
}

fn tell(error: &io::Error, path: &std::path::Path) {
    let path = path.display();
    if error.kind() == io::ErrorKind::WouldBlock {
        let mend = "give each daemon a `state` of its own";
        warn!(%path, "another tidegate keeps its state here, so a restart of this one begins afresh: {mend}");
        return;
    }
    let mend = "see that the directory is there, is this user's and has room";
    warn!(%path, "the tables cannot be written, so a restart loses what came since: {error}: {mend}; tried again");
}

/// How often the tables are written: what a crash gives again is at most what this time admitted.
pub const WRITE_EVERY: Duration = Duration::from_secs(60);

/// How long the end waits for the last write: a million keys take a fraction of it, and a disk that takes longer than this
/// holds up a restart no further.
pub const LAST_WRITE_MAX: Duration = Duration::from_millis(800);

/// A disk that stays full is said again after so long.
const TELL_EVERY: Duration = Duration::from_secs(3_600);

const NANOS_PER_SECOND: u64 = 1_000_000_000;
