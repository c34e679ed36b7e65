//! Writes the snapshot every minute and at exit, on a thread of its own. Only the exit waits for the disk, for at most
//! [`LAST_WRITE_MAX`].

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tracing::{debug, info, warn};

use super::directory::{Directory, DirectoryLock, SnapshotStats, StateFile};
use super::snapshot::{Moment, write_tables};
use crate::clock::{Clock, Micros, Timestamp};
use crate::engine::Engine;
use crate::terms::without_number;

#[derive(Debug)]
pub(crate) struct SnapshotKeeper {
    end: Sender<()>,
    ended: Receiver<bool>,
    lock: DirectoryLock,
}

impl SnapshotKeeper {
    /// Makes a keeper and the work of its thread. `every` is the interval of writes, varied by a tenth.
    pub(crate) fn new(
        directory: Directory,
        engine: Arc<Engine>,
        clock: Arc<Clock>,
        boot_id: PathBuf,
        every: Duration,
        record: Arc<SnapshotStats>,
    ) -> (SnapshotKeeper, impl FnMut() + Send + 'static) {
        let ((end, end_requested), (report_end, ended)) = (channel(), channel());
        let lock = directory.lock();
        let mut worker = KeeperWorker {
            directory,
            engine,
            clock,
            boot_id,
            every,
            record,
            failure_logged_at: None,
            writes: 0,
        };
        let work = move || {
            let written = worker.run(&end_requested);
            // `SnapshotKeeper::finish` may have timed out.
            let _ = report_end.send(written);
        };
        (SnapshotKeeper { end, ended, lock }, work)
    }

    /// Writes the last snapshot, after the engine's last decision, and releases the directory to the next daemon. Returns
    /// whether the write was complete within [`LAST_WRITE_MAX`]; otherwise the previous snapshot stays. The process must
    /// exit afterwards.
    #[must_use]
    pub(crate) fn finish(self) -> bool {
        drop(self.end);
        let written = self.ended.recv_timeout(LAST_WRITE_MAX).unwrap_or(false);
        self.lock.release();
        written
    }
}

struct KeeperWorker {
    directory: Directory,
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    /// The file that identifies this boot.
    boot_id: PathBuf,
    every: Duration,
    record: Arc<SnapshotStats>,
    /// When a failure was last logged; `None` after a successful write.
    failure_logged_at: Option<Timestamp>,
    writes: u64,
}

impl KeeperWorker {
    fn run(&mut self, end_requested: &Receiver<()>) -> bool {
        loop {
            match end_requested.recv_timeout(self.next_pause()) {
                Err(RecvTimeoutError::Timeout) => self.write(false),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return self.write(true),
            };
        }
    }

    /// Returns the time until the next write, varied so that hosts that were started together write at different times.
    fn next_pause(&mut self) -> Duration {
        self.writes += 1;
        let tenth = self.every / 10;
        let random =
            siphasher::sip::SipHasher13::new_with_key(&self.directory.key.0).hash(&self.writes.to_le_bytes());
        let share = u32::try_from(random % 2_000).unwrap_or_default();
        self.every - tenth + tenth / 1_000 * share
    }

    fn write(&mut self, is_final: bool) -> bool {
        let KeeperWorker { directory, engine, clock, boot_id, record, .. } = self;
        let now = clock.now();
        // Both times come from one reading, so that the next daemon's timeline continues exactly.
        let here = Moment::when(boot_id, clock.boot_nanos_at(now.at));
        let path = directory.path_of(StateFile::Tables);
        let written = directory
            .prepare()
            .and_then(|()| write_tables(&path, directory.key, engine, now, &here, is_final));
        match written {
            Ok(bytes) => {
                let took_micros = Micros::from(clock.now().at.since(now.at)).0;
                record.update(|status| {
                    (status.writes, status.bytes) = (status.writes + 1, bytes);
                    status.last_write = u64::try_from(here.unix_nanos).unwrap_or_default() / NANOS_PER_SECOND;
                });
                debug!(bytes, took_micros, "the tables were written");
                if self.failure_logged_at.take().is_some() {
                    info!(path = %path.display(), "the tables can be written again");
                }
            }
            Err(ref error) => {
                record.update(|status| status.failures += 1);
                let throttled = self.failure_logged_at.is_some_and(|at| now.at.since(at) < LOG_INTERVAL_MIN);
                if !throttled {
                    self.failure_logged_at = Some(now.at);
                    log_failure(error, &path);
                }
            }
        }
        written.is_ok()
    }
}

fn log_failure(error: &io::Error, path: &std::path::Path) {
    let path = path.display();
    if error.kind() == io::ErrorKind::WouldBlock {
        let help = "give each daemon its own `state` directory";
        warn!(%path, "another tidegate uses this directory, so a restart of this one loses its state; help: {help}");
        return;
    }
    let error = without_number(error);
    let help = "check that the directory exists, belongs to this user and has space";
    warn!(%path, "the tables cannot be written, so a restart loses newer state: {error}; will retry; help: {help}");
}

/// The interval of writes. After a crash, the requests admitted since the last write are not counted.
pub(crate) const WRITE_EVERY: Duration = Duration::from_secs(60);

/// The most that the exit waits for the last write. A million keys take a fraction of it; a slower disk does not delay a
/// restart further.
const LAST_WRITE_MAX: Duration = Duration::from_millis(800);

/// The interval of log lines while writes fail.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(3_600);

const NANOS_PER_SECOND: u64 = 1_000_000_000;
