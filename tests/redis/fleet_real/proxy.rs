//! Proxies the connection to Redis for tests, and delays replies or both directions.

use crate::prelude::*;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// A socket that leads to Redis.
pub(crate) struct RedisProxy {
    directory: TempDir,
    /// Delay of each reply chunk, in milliseconds.
    pub(crate) delay_millis: Arc<AtomicU32>,
}

impl RedisProxy {
    pub(crate) fn to(redis: &Path) -> RedisProxy {
        RedisProxy::over_line(redis, 65_536, Duration::ZERO)
    }

    /// Both directions have so many bytes at a time, each time after a delay.
    pub(crate) fn over_line(redis: &Path, bytes: usize, delay: Duration) -> RedisProxy {
        let directory = tempfile::Builder::new().prefix("tidegate-proxy-").tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("proxy.sock")).unwrap();
        let delay_millis: Arc<AtomicU32> = Arc::default();
        let (redis, of_replies): (PathBuf, _) = (redis.to_owned(), Arc::clone(&delay_millis));
        // Runs until the process exits: no client connects after the directory is removed.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&redis) else { continue };
                let (asks, says) = (stream.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || pass(asks, server, bytes, || delay));
                let millis = Arc::clone(&of_replies);
                let delay = move || delay + Duration::from_millis(millis.load(Ordering::Relaxed).into());
                std::thread::spawn(move || pass(says, stream, bytes, delay));
            }
        });
        RedisProxy { directory, delay_millis }
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}/proxy.sock", self.directory.path().display())
    }
}

/// Forwards bytes, each time after a delay, until either end closes; then closes both ends.
fn pass(mut from: UnixStream, mut to: UnixStream, bytes: usize, delay: impl Fn() -> Duration) {
    let mut piece = vec![0; bytes];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        sleep(delay());
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
