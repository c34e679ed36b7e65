//! Proxies the connection to Redis for tests: drops replies of executed commands, delays them, closes
//! connections.

use crate::prelude::*;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tempfile::TempDir;

/// A socket that leads to Redis.
pub(crate) struct RedisProxy {
    directory: TempDir,
    faults: Arc<ProxyFaults>,
}

/// Faults of the proxy, and counts.
#[derive(Debug, Default)]
pub(crate) struct ProxyFaults {
    /// One in this many reply chunks is dropped, and its connection closed; 0: none.
    pub(crate) drop_one_in: AtomicU32,
    /// Delay of each reply chunk, in milliseconds.
    pub(crate) delay_millis: AtomicU32,
    pub(crate) dropped: AtomicU64,
    pieces: AtomicU32,
}

impl RedisProxy {
    pub(crate) fn to(redis: &Path) -> RedisProxy {
        RedisProxy::over_line(redis, 65_536, Duration::ZERO)
    }

    /// Both directions have so many bytes at a time, each time after a delay.
    pub(crate) fn over_line(redis: &Path, bytes: usize, delay: Duration) -> RedisProxy {
        let directory = tempfile::Builder::new().prefix("tidegate-proxy-").tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("proxy.sock")).unwrap();
        let faults = Arc::new(ProxyFaults::default());
        let (redis, shared_faults): (PathBuf, _) = (redis.to_owned(), Arc::clone(&faults));
        // Runs until the process exits: no client connects after the directory is removed.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&redis) else { continue };
                let (asks, says) = (stream.try_clone().unwrap(), server.try_clone().unwrap());
                let waits = move || {
                    sleep(delay);
                    true
                };
                std::thread::spawn(move || pass(asks, server, bytes, waits));
                let faults = Arc::clone(&shared_faults);
                std::thread::spawn(move || pass(says, stream, bytes, || waits() && faults.lets_pass()));
            }
        });
        RedisProxy { directory, faults }
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}/proxy.sock", self.directory.path().display())
    }

    pub(crate) fn faults(&self) -> &ProxyFaults {
        &self.faults
    }
}

impl ProxyFaults {
    fn lets_pass(&self) -> bool {
        sleep(Duration::from_millis(self.delay_millis.load(Ordering::Relaxed).into()));
        let piece = self.pieces.fetch_add(1, Ordering::Relaxed) + 1;
        let drops = self.drop_one_in.load(Ordering::Relaxed);
        let is_dropped = drops > 0 && piece.is_multiple_of(drops);
        self.dropped.fetch_add(u64::from(is_dropped), Ordering::Relaxed);
        !is_dropped
    }
}

/// Forwards bytes until either end closes or `lets_pass` refuses; then closes both ends.
fn pass(mut from: UnixStream, mut to: UnixStream, bytes: usize, lets_pass: impl Fn() -> bool) {
    let mut piece = vec![0; bytes];
    while let Ok(count) = from.read(&mut piece) {
        if count == 0 || !lets_pass() || to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
